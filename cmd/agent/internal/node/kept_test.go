package node

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// keeps has a node keep its state in dir; the end of the test waits for what is
// written.
func keeps(t *testing.T, dir string) (change func(*Config), end func()) {
	t.Helper()
	store, err := lastgood.Open(lastgood.Config{Dir: dir, Delay: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	ended := false
	end = func() {
		if !ended {
			ended = true
			cancel()
			<-done
			store.Close()
		}
	}
	t.Cleanup(end)
	return func(c *Config) { c.State, c.Scope = store, func(string) string { return "" } }, end
}

// What the operator has said of endpoints survives a restart, until it is taken
// back.
func TestEnablementSurvives(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	one, two := endpoint("192.0.2.1:80"), endpoint("192.0.2.2:80")
	for _, life := range []struct {
		disabled bool // at the beginning
		then     bool // one is enabled
	}{{false, false}, {true, true}, {false, true}} {
		synctest.Test(t, func(t *testing.T) {
			change, end := keeps(t, dir)
			r := start(t, change)
			r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(one, two))}})
			synctest.Wait()
			for _, e := range r.cluster("web").Endpoints {
				if want := life.disabled && e.Addr == one.Addr; e.Disabled != want {
					t.Errorf("%s: disabled is %t", e.Addr, e.Disabled)
				}
			}
			c := r.serving("web") // whose owner waits for something to do
			if err := c.view.SetEnabled(one.Addr, life.then); err != nil {
				t.Fatal(err)
			}
			c.stale = true
			poke(c.wake)
			synctest.Wait()
			end()
		})
	}
}

// Each argument of a discovery block says whether what was learnt with another
// value of it is of use.
func TestSourceKey(t *testing.T) {
	typ := reflect.TypeFor[config.Discovery]()
	var names []string
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("hcl"), ",")
		if name == "" {
			continue
		}
		names = append(names, name)
		is, decided := identifies[name]
		if !decided {
			t.Errorf("%s is not decided: say in identifies if it is part of what the endpoints of a block are", name)
			continue
		}
		var d config.Discovery
		f := reflect.ValueOf(&d).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]string{"x": "y"}))
		default:
			t.Fatalf("%s: a %s", name, f.Kind())
		}
		if other := sourceKey("web", &d, "") != sourceKey("web", &config.Discovery{}, ""); other != is {
			t.Errorf("another value of %s makes it another source: %v, want %v", name, other, is)
		}
	}
	if len(names) != len(identifies) {
		t.Errorf("%d arguments, and %d are decided", len(names), len(identifies))
	}
	d := config.Discovery{Kind: config.DiscoveryConsul}
	if sourceKey("web", &d, "a") == sourceKey("web", &d, "b") || sourceKey("web", &d, "") == sourceKey("api", &d, "") {
		t.Error("neither the cluster nor the scope is part of the key")
	}
}

// A cluster whose source does not answer after the restart serves what it knew, is
// warm and says so.
func TestRestoredCluster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	cfg := clusterOf("web", config.Discovery{Kind: config.DiscoveryConsul, Service: "web"})
	cfg.Required = true
	set := lbcore.MustSet(endpoint("192.0.2.1:80"))
	life := func(t *testing.T, do func(*rig, chan struct{}), more ...func(*Config)) {
		synctest.Test(t, func(t *testing.T) {
			answers := make(chan struct{})
			change, end := keeps(t, dir)
			r := start(t, append(more, change, func(c *Config) {
				c.Consul = func(config.Discovery, *slog.Logger, *discovery.Duplicates) (discovery.Source, error) {
					return waits{answers, set}, nil
				}
			})...)
			r.apply(Spec{Clusters: []config.Cluster{cfg}})
			synctest.Wait()
			do(r, answers)
			end()
		})
	}
	life(t, func(r *rig, answers chan struct{}) {
		if lines := r.Waiting(); len(lines) != 1 || r.Restored() != nil {
			t.Errorf("with nothing kept it waits for %q", lines)
		}
		close(answers)
		synctest.Wait()
		if r.ready("web") != 1 {
			t.Errorf("the cluster is %+v", r.cluster("web"))
		}
	})
	for _, waits := range []bool{false, true} {
		life(t, func(r *rig, answers chan struct{}) {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if r.ready("web") != 1 || !r.serving("web").warm.Load() {
				t.Errorf("the cluster is %+v", r.cluster("web"))
			}
			st := r.cluster("web").Source
			if st.State != "stale" || st.Restored == nil || st.Restored.Age < 0 || st.Blocks[0].Restored == nil || !st.Confirmed.Equal(st.Restored.Confirmed) {
				t.Errorf("the source is shown as %+v", st)
			}
			if lines := r.Restored(); len(lines) != 1 || !strings.Contains(lines[0], `cluster "web": stale, its 1 endpoints are those of before the restart, `) {
				t.Errorf("restored: %q", lines)
			}
			if lines := r.Waiting(); (len(lines) == 1) != waits || r.Stale() != waits {
				t.Errorf("it waits for %q, stale: %t", lines, r.Stale())
			}
			// A replacement waits for an answer, since this one serves.
			next := changed(cfg)
			r.apply(Spec{Clusters: []config.Cluster{next}})
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if w := r.cluster("web").Waiting; !strings.Contains(w, "discovery has not answered yet") || r.ready("web") != 1 {
				t.Errorf("the replacement waits for %q", w)
			}
			close(answers)
			synctest.Wait()
			if lines := append(r.Restored(), r.Waiting()...); len(lines) > 0 || r.Stale() || r.cluster("web").Source.Restored != nil || r.cluster("web").Source.State != "fresh" {
				t.Errorf("after the answer: %q, %+v", lines, r.cluster("web").Source)
			}
		}, func(c *Config) { c.StaleWaits = waits })
	}
}

// waits is a source that answers when it is let.
type waits struct {
	answers chan struct{}
	set     lbcore.Set
}

func (w waits) Watch(ctx context.Context, sink discovery.Sink) error {
	select {
	case <-w.answers:
		sink.Replace(w.set)
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ctx.Done()
	return ctx.Err()
}

// What is on disk may have been written by anybody: it is read back as it was, or is
// damaged.
func FuzzDecodeSaid(f *testing.F) {
	for _, text := range []string{
		`{"10.0.0.1:80":false,"[2001:db8::1]:80":true,"unix:///run/a.sock":false}`, `{}`, `null`, `[]`, `{"":true}`, `{"10.0.0.1:80":1}`, `{"10.0.0.1:99999":true}`,
		`{"[::ffff:10.0.0.1]:80":true,"10.0.0.1:80":false}`, `{"unix:///a":tru`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		said, err := decodeSaid(payload)
		if err != nil {
			return
		}
		if !bytes.Contains(payload, []byte("{")) {
			t.Fatalf("%s is taken for no word on any endpoint", payload)
		}
		text, err := encodeSaid(said)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeSaid(text); err != nil || !maps.Equal(said, again) {
			t.Errorf("%q is %v, and as %s %v, %v", payload, said, text, again, err)
		}
	})
}
