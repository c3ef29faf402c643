package xds

import (
	"encoding"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/lbcore"
)

// What control planes give comes to what is written beside it.
func TestDecodeGolden(t *testing.T) {
	for dir, as := range map[string]struct {
		message proto.Message
		decode  func([]byte) (string, any, error)
	}{
		"lds": {new(listenerv3.Listener), decodeListener},
		"cds": {new(clusterv3.Cluster), decodeCluster},
		"eds": {new(endpointv3.ClusterLoadAssignment), decodeAssignment},
	} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatal("no files", err)
		}
		for _, file := range files {
			t.Run(dir+"/"+filepath.Base(file), func(t *testing.T) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := protojson.Unmarshal(text, as.message); err != nil {
					t.Fatal(err)
				}
				_, v, err := as.decode(marshal(t, as.message))
				if err != nil {
					t.Fatal(err)
				}
				got, golden := goldenText(t, v), strings.TrimSuffix(file, ".json")+".want"
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
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
	}
}

// goldenText is what was decoded, as text: all that is not zero.
func goldenText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(shownAs(reflect.ValueOf(v)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// shownAs returns what JSON can be made of.
func shownAs(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case *assignment:
		return map[string]any{"Set": shownAs(reflect.ValueOf(x.set)), "LeftOut": x.leftOut, "Notes": x.notes}
	case lbcore.Set:
		var list []any
		for _, e := range x.All() {
			list = append(list, shownAs(reflect.ValueOf(e)))
		}
		return list
	case lbcore.Addr:
		return x.String()
	case encoding.TextMarshaler:
		return x
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return shownAs(v.Elem())
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = shownAs(v.Index(i))
		}
		return list
	case reflect.Struct:
		fields := make(map[string]any)
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type.Kind() != reflect.Func && !v.Field(i).IsZero() {
				fields[f.Name] = shownAs(v.Field(i))
			}
		}
		return fields
	}
	return v.Interface()
}
