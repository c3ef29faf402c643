package xds

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
)

// What control planes give comes to what is written beside it.
func TestDecodeListenerGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/lds/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var m listenerv3.Listener
		if err := protojson.Unmarshal(text, &m); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		_, v, err := decodeListener(marshal(t, &m))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got, golden := string(b)+"\n", strings.TrimSuffix(file, ".json")+".want"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatalf("%v: run go test ./xds -run Golden -update", err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}
