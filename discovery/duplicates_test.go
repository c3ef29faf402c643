package discovery_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

func dropped(ns ...byte) (d []lbcore.Dropped) {
	for i, n := range ns {
		d = append(d, lbcore.Dropped{Index: i, Endpoint: discoverytest.Endpoint(n)})
	}
	return d
}

func TestDuplicates(t *testing.T) {
	var log bytes.Buffer
	d := &discovery.Duplicates{Logger: slog.New(slog.NewTextHandler(&log, nil)).With("cluster", "web")}
	d.Note(nil)
	if log.Len() > 0 || d.Total() != 0 {
		t.Errorf("no duplicates: total %d, log %s", d.Total(), log.String())
	}
	d.Note(dropped(1, 2))
	d.Note(dropped(1, 2)) // the next answer has them too: counted, no second warning
	if got := strings.Count(log.String(), "\n"); got != 1 || d.Total() != 4 {
		t.Errorf("got total %d and %d warnings, want 4 and 1:\n%s", d.Total(), got, log.String())
	}
	for _, want := range []string{"level=WARN", "cluster=web", "dropped=2", "192.0.2.1:80 192.0.2.2:80"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("want %q in the warning %s", want, log.String())
		}
	}
	d.Note(nil)
	d.Note(dropped(1, 2)) // gone and back again
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("got %d warnings, want 2", got)
	}
	log.Reset()
	d.Note(dropped(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
	if s := log.String(); !strings.Contains(s, "192.0.2.10:80 and 2 more") || strings.Contains(s, "192.0.2.11:80") {
		t.Errorf("want ten addresses and 2 more: %s", s)
	}
}

func TestDuplicatesNilAndSilent(t *testing.T) {
	var none *discovery.Duplicates
	none.Note(dropped(1))
	if none.Total() != 0 {
		t.Errorf("nil: got total %d", none.Total())
	}
	var silent discovery.Duplicates
	silent.Note(dropped(1))
	if silent.Total() != 1 {
		t.Errorf("without a logger: got total %d, want 1", silent.Total())
	}
}
