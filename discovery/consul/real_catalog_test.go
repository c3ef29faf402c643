package consul_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/discovery/consul/consultest"
)

// listing is what WatchListeners has reported, one text a report.
type listing struct {
	t     testing.TB
	mu    sync.Mutex
	texts []string
	next  int
}

// listeners runs WatchListeners.
func (r *real) listeners() *listing {
	l := &listing{t: r.t}
	r.wg.Go(func() {
		if err := r.WatchListeners(r.ctx, l.add); err == nil || err != r.ctx.Err() {
			r.t.Errorf("WatchListeners returned %v, want the context's error", err)
		}
	})
	return l
}

func (l *listing) add(ls consul.Listeners) {
	var words []string
	for _, x := range ls.Listeners {
		words = append(words, x.Service+"="+x.Address.String())
	}
	for _, x := range ls.Refused {
		words = append(words, fmt.Sprintf("refused %s=%s", x.Service, x.Value))
	}
	if ls.Err != nil {
		words = append(words, "error: "+ls.Err.Error())
	}
	if !ls.Known {
		words = append(words, "unknown")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.texts = append(l.texts, strings.Join(words, " "))
}

// see waits for a report that is not accounted for yet.
func (l *listing) see(want string) {
	l.t.Helper()
	l.wait(fmt.Sprintf("%q", want), func(text string) bool { return text == want })
}

func (l *listing) wait(what string, ok func(string) bool) {
	l.t.Helper()
	step(l.t, "listeners: "+what)
	defer func() {
		if l.t.Failed() {
			l.t.Logf("the listeners were %q", l.texts)
		}
	}()
	until(l.t, "the listeners are "+what, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for ; l.next < len(l.texts); l.next++ {
			if ok(l.texts[l.next]) {
				return true
			}
		}
		return false
	})
}

// Services that ask for a listener, by a tag or in their metadata, get it as
// long as they do, whatever Consul goes through.
func TestRealListeners(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{})
	r := of(t, s)
	l := r.listeners()
	l.see("")
	web := instance(1)
	web.Tags = []string{"blue", "gatehouse.listen=127.0.0.1:8080"}
	s.Register(web)
	l.see("web=127.0.0.1:8080")
	db := consultest.Instance{Name: "db", Port: 5432, Meta: map[string]string{"gatehouse-listen": ":5432"}}
	open := consultest.Instance{Name: "open", Port: 1, Tags: []string{"gatehouse.listen=0.0.0.0:99"}}
	s.RegisterMany(db, open, consultest.Instance{Name: "plain", Port: 2})
	l.see(`db=127.0.0.1:5432 web=127.0.0.1:8080 refused "open"="0.0.0.0:99"`)

	s.Kill()
	l.wait("the same, with an error", func(text string) bool {
		return strings.HasPrefix(text, "db=127.0.0.1:5432 web=127.0.0.1:8080 ") && strings.Contains(text, "error: ")
	})
	s.Restart()
	l.see(`db=127.0.0.1:5432 web=127.0.0.1:8080 refused "open"="0.0.0.0:99"`)
	snapshot := s.Snapshot()
	age(s)
	s.Replace("open")
	s.Replace("db")
	l.see("web=127.0.0.1:8080")
	r.calm()
	s.Restore(snapshot)
	l.see(`db=127.0.0.1:5432 web=127.0.0.1:8080 refused "open"="0.0.0.0:99"`)
	s.Replace("open")
	s.Replace("db")
	s.Deregister("web-1")
	l.see("")
}

// registration is what an agent registers for itself, less CheckURL.
func registration() consul.Registration {
	return consul.Registration{
		Name: "gatehouse", ID: "gatehouse-7", Address: "192.0.2.7", Port: 80, Tags: []string{"edge"}, Meta: map[string]string{"version": "1"},
		CheckURL: "http://127.0.0.1:9/ready", CheckInterval: time.Second,
	}
}

// register runs Register; what it returns ends that.
func (r *real) register(reg consul.Registration) (end func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		if err := r.Register(ctx, reg); err == nil || err != ctx.Err() {
			r.t.Errorf("Register returned %v, want the context's error", err)
		}
	})
	return func() {
		cancel()
		<-done
	}
}

// An agent's own service is there with its check, there again after Consul has
// lost its state, and gone after a clean end.
func TestRealRegister(t *testing.T) {
	t.Parallel()
	var ready atomic.Int32
	ready.Store(http.StatusServiceUnavailable)
	check := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(ready.Load())) }))
	defer check.Close()
	s := consultest.Start(t, consultest.Options{})
	age(s)
	r := of(t, s)
	reg := registration()
	reg.CheckURL = check.URL + "/ready"
	own := r.watch(consul.Query{Service: "gatehouse", Tags: []string{"edge"}})
	own.see("")
	end := r.register(reg)
	own.see("7-")
	ready.Store(http.StatusOK)
	own.see("7")
	service, _, err := s.API("").Agent().Service("gatehouse-7", &api.QueryOptions{})
	if err != nil || service.Meta["version"] != "1" || service.Port != 80 {
		t.Errorf("got %+v, %v", service, err)
	}
	s.WipeAndRestart()
	own.mark()
	own.see("7")
	end()
	own.see("")
	if _, _, err := s.API("").Agent().Service("gatehouse-7", &api.QueryOptions{}); err == nil {
		t.Error("it is registered after its end")
	}
}
