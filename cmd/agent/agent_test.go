package main

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/healthsvc"
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

// How many connections fit the descriptors is the default, and more than that is
// warned of.
func TestDescriptorBudget(t *testing.T) {
	fit := forwarder.ConnectionsFor(forwarder.MaxDescriptors())
	if fit == 0 {
		t.Fatal("the limit of descriptors is not known: set one with ulimit -n")
	}
	for limit, warns := range map[int]bool{0: false, fit: false, fit + 1: true} {
		var log bytes.Buffer
		a, err := newAgent(load(t, fmt.Sprintf("limits {\n  max_connections = %d\n}\n", limit)), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		a.logLimits()
		if a.maxOpen != cmp.Or(limit, fit) || strings.Contains(log.String(), "RLIMIT_NOFILE") != warns {
			t.Errorf("limit %d: %d connections, log %s", limit, a.maxOpen, &log)
		}
		probes := forwarder.ProbesFor(forwarder.MaxDescriptors(), a.maxOpen)
		a.health.Acquire(healthsvc.Key{}, healthsvc.TCP{}, &healthsvc.Ask{Cadence: healthsvc.Cadence{Interval: time.Hour, Timeout: time.Hour}})
		if got := a.health.Stats().Workers; got != probes || probes == 0 {
			t.Errorf("limit %d: %d probes at once, want %d", limit, got, probes)
		}
		if !strings.Contains(log.String(), fmt.Sprintf("msg=limits max_connections=%d descriptors=", a.maxOpen)) {
			t.Errorf("log %s", &log)
		}
	}
}
