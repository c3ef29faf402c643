package main

import (
	"os"
	"path/filepath"
	"testing"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
)

// The node of a bootstrap file goes before the node block, which says what the
// file does not.
func TestBootstrapNode(t *testing.T) {
	cfg := &config.Config{Node: config.Node{ID: "mine", Cluster: "mine", Locality: config.Locality{Region: "eu", Zone: "eu-1a"}}}
	write := func(node string) {
		t.Helper()
		cfg.XDS.Bootstrap = filepath.Join(t.TempDir(), "bootstrap.json")
		text := `{"xds_servers": [{"server_uri": "127.0.0.1:1", "channel_creds": [{"type": "insecure"}]}], "node": ` + node + `}`
		if err := os.WriteFile(cfg.XDS.Bootstrap, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for node, want := range map[string]struct {
		id       string
		locality lbcore.Locality
	}{
		`{}`: {"mine", lbcore.Locality{Region: "eu", Zone: "eu-1a"}},
		`{"id": "b", "locality": {"sub_zone": "rack"}}`: {"b", lbcore.Locality{SubZone: "rack"}},
	} {
		write(node)
		xc, err := bootstrap(cfg)
		if err != nil || xc.Node.ID != want.id || xc.Node.Locality != want.locality {
			t.Errorf("%s: %+v, %v; want %+v", node, xc, err, want)
		}
	}
	cfg.XDS = config.XDS{ServerURI: "127.0.0.1:1"}
	if xc, err := bootstrap(cfg); err != nil || xc.Node.Locality != (lbcore.Locality{Region: "eu", Zone: "eu-1a"}) {
		t.Errorf("without a file: %+v, %v", xc, err)
	}
}
