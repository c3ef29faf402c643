package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse.internal/cmd/agent/internal/admin/page"
	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/xds"
)

// liveConfig shows the fixture.
func liveConfig() *Config {
	st := fixture()
	many := node.SelectorShares{Name: "sticky", Policy: "ring_hash", Generation: 11, Keys: 16384}
	for i := range liveParts + 4 {
		many.Parts = append(many.Parts, node.Part{Addr: addr(fmt.Sprintf("192.0.2.%d:80", i+1)), Share: float64(1+i%7) / 100})
	}
	many.Ring = []int{0, 6, -1, 1}
	return &Config{
		Summary: func() node.Status {
			short := fixture()
			for i := range short.Clusters {
				short.Clusters[i].Endpoints = nil
			}
			return short
		},
		Cluster: func(name string) (node.ClusterStatus, []node.SelectorShares, bool) {
			for _, c := range st.Clusters {
				if c.Name == name {
					return c, []node.SelectorShares{many}, true
				}
			}
			return node.ClusterStatus{}, nil, false
		},
		State: func() (State, []string) {
			return Initializing, []string{"cluster web: " + strings.Repeat("é", liveText)}
		},
		Restored: func() []string { return []string{"cluster sql"} },
		XDS: func() xds.Status {
			x := control()
			x.Server, x.LastError = "control:1", "gone\naway"
			return x
		},
		SetEnabled: nil, Version: "1.2.3", Node: "node-7", Started: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Metrics: http.NotFoundHandler(),
	}
}

// What the page is told is all of the fixture, in few words.
func TestLiveRows(t *testing.T) {
	cfg := liveConfig()
	rows := cfg.live("web")
	rows["agent|"] = json.RawMessage(withoutNow(t, rows["agent|"]))
	text, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "live.json", string(text)+"\n")
	none := cfg.live("absent")
	for name := range none {
		if strings.HasPrefix(name, "endpoint|") || strings.HasPrefix(name, "shares|") {
			t.Errorf("of a cluster that is not there: %s", name)
		}
	}
	if none["cluster|web"] == nil {
		t.Error("the clusters are missing")
	}
}

// withoutNow leaves out the moment.
func withoutNow(t *testing.T, row json.RawMessage) string {
	var a liveAgent
	if err := json.Unmarshal(row, &a); err != nil || time.Since(a.Now) > time.Minute {
		t.Errorf("the agent's row is %s, %v", row, err)
	}
	a.Now = time.Time{}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The parts of a ring that are not named are shown as such, and each sector leads to
// its own.
func TestLiveShares(t *testing.T) {
	_, shares, _ := liveConfig().Cluster("web")
	s := liveSharesOf(shares[0])
	if len(s.Parts) != liveParts || s.Others != 4 || !slices.IsSortedFunc(s.Parts, func(a, b livePart) int { return int(1000 * (b.Share - a.Share)) }) {
		t.Errorf("%d parts and %d others: %v", len(s.Parts), s.Others, s.Parts)
	}
	if s.Ring[0] > -2 || s.Ring[2] != -1 || s.Ring[1] < 0 || s.Parts[s.Ring[1]].Address != shares[0].Parts[6].Addr.String() {
		t.Errorf("the ring is %v of %v", s.Ring, s.Parts)
	}
}

// A browser changes nothing without the token of the page; who is no browser has none.
func TestToken(t *testing.T) {
	p := page.New(page.Config{})
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	_, token, _ := strings.Cut(w.Body.String(), `name="token" content="`)
	token, _, _ = strings.Cut(token, `"`)
	h := withToken(p, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for _, tt := range []struct {
		what, method string
		headers      map[string]string
		want         int
	}{
		{"a tool", "POST", nil, 200},
		{"the page", "POST", map[string]string{"Origin": "http://127.0.0.1:9901", page.TokenHeader: token}, 200},
		{"a browser without it", "POST", map[string]string{"Origin": "http://127.0.0.1:9901"}, 403},
		{"a browser that hides its origin", "POST", map[string]string{"Sec-Fetch-Site": "same-origin"}, 403},
		{"a browser with another one", "POST", map[string]string{"Origin": "http://127.0.0.1:9901", page.TokenHeader: "x" + token}, 403},
		{"a browser that reads", "GET", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
	} {
		r := httptest.NewRequest(tt.method, "/", nil)
		for k, v := range tt.headers {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.what, w.Code, tt.want)
		}
	}
}

// A stream is longer than other requests may be, and ends with the agent.
func TestEventsEndWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { Serve(ctx, p, Handler(*liveConfig()), ServeConfig{}) })
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			p.conns <- b
			return a, nil
		}}}
		resp, err := client.Get("http://127.0.0.1/events?cluster=web")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		began, events := time.Now(), 0
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data: ") {
				events++
			}
			if time.Since(began) > 5*time.Minute {
				cancel()
			}
		}
		if events < 290 || time.Since(began) > 6*time.Minute {
			t.Errorf("%d events in %v", events, time.Since(began))
		}
		cancel()
		wg.Wait()
	})
}
