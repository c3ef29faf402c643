package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const consulToken = "s3cr3t"

// fakeConsul answers what the agent asks of a Consul agent: as much of it as is
// needed to see what the agent makes of the answers.
type fakeConsul struct {
	*httptest.Server
	mu         sync.Mutex
	index      uint64
	changed    chan struct{} // closed by the next change
	services   map[string]fakeService
	registered map[string]map[string]any // by id
	hangs      atomic.Bool               // nothing is deregistered, nor answered
}

// fakeService is a service with one instance.
type fakeService struct {
	addr   string
	listen string // "": nobody is asked to
}

func startFakeConsul(t *testing.T, services map[string]fakeService) *fakeConsul {
	f := &fakeConsul{index: 1, changed: make(chan struct{}), services: services, registered: make(map[string]map[string]any)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health/service/{name}", func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, r, func() any {
			s, ok := f.services[r.PathValue("name")]
			if !ok {
				return []any{}
			}
			host, port, _ := net.SplitHostPort(s.addr)
			n, _ := strconv.Atoi(port)
			return []any{map[string]any{
				"Node":    map[string]any{"Node": "n", "Address": "192.0.2.1"},
				"Service": map[string]any{"ID": r.PathValue("name"), "Service": r.PathValue("name"), "Address": host, "Port": n},
				"Checks":  []any{},
			}}
		})
	})
	mux.HandleFunc("GET /v1/catalog/services", func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, r, func() any {
			list := make(map[string][]string)
			for name, s := range f.services {
				if r.URL.Query().Get("filter") == "" {
					list[name] = []string{}
					if s.listen != "" {
						list[name] = append(list[name], "gatehouse.listen="+s.listen)
					}
				}
			}
			return list
		})
	})
	mux.HandleFunc("GET /v1/health/state/{status}", func(w http.ResponseWriter, r *http.Request) {
		f.answer(w, r, func() any { return []any{} })
	})
	mux.HandleFunc("GET /v1/agent/service/{id}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		s := f.registered[r.PathValue("id")]
		if s == nil {
			http.Error(w, "unknown service ID", http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"ID": s["ID"], "Service": s["Name"], "Address": s["Address"], "Port": s["Port"]})
	})
	mux.HandleFunc("PUT /v1/agent/service/register", func(w http.ResponseWriter, r *http.Request) {
		var s map[string]any
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.registered[s["ID"].(string)] = s
	})
	mux.HandleFunc("PUT /v1/agent/service/deregister/{id}", func(w http.ResponseWriter, r *http.Request) {
		if f.hangs.Load() {
			<-r.Context().Done()
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.registered, r.PathValue("id"))
	})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Consul-Token") != consulToken {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// answer answers as soon as the index is another than that of the request.
func (f *fakeConsul) answer(w http.ResponseWriter, r *http.Request, value func() any) {
	f.mu.Lock()
	for r.URL.Query().Get("index") == fmt.Sprint(f.index) {
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	w.Header().Set("X-Consul-Index", fmt.Sprint(f.index))
	w.Header().Set("X-Consul-KnownLeader", "true")
	w.Header().Set("X-Consul-LastContact", "0")
	json.NewEncoder(w).Encode(value())
}

// change changes the catalog.
func (f *fakeConsul) change(do func(services map[string]fakeService)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.services)
	f.index++
	close(f.changed)
	f.changed = make(chan struct{})
}

// service returns what the agent has registered, or nil.
func (f *fakeConsul) service(id string) map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.registered[id]
}

// running is an agent in this process.
type running struct {
	*agent
	t     *testing.T
	drain chan struct{}
	done  chan struct{} // closed when run has returned err; then log is to be read
	err   error
	log   bytes.Buffer
}

func startRunning(t *testing.T, text string) *running {
	t.Helper()
	return startRunningWith(t, text, func(*running) {})
}

// startRunningWith is startRunning of an agent that is prepared before.
func startRunningWith(t *testing.T, text string, prepare func(*running)) *running {
	t.Helper()
	r := &running{t: t, drain: make(chan struct{}), done: make(chan struct{})}
	var err error
	r.agent, err = newAgent(load(t, "admin { address = \"127.0.0.1:0\" }\n"+text), slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	prepare(r)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(r.done)
		r.err = r.run(ctx, r.drain)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		if t.Failed() {
			t.Logf("the agent's log:\n%s", &r.log)
		}
		if strings.Contains(r.log.String(), consulToken) {
			t.Errorf("the token is in the log:\n%s", &r.log)
		}
	})
	return r
}

// end drains the agent and waits until it has ended.
func (r *running) end() {
	r.t.Helper()
	close(r.drain)
	r.wait()
}

// wait waits until the agent has ended.
func (r *running) wait() {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		r.t.Fatal("the agent does not end")
	}
	if r.err != nil {
		r.t.Errorf("run: %v", r.err)
	}
}

// get asks the admin interface.
func (r *running) get(path string) (code int, body string) {
	r.t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + r.adminAddr() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if strings.Contains(string(b), consulToken) {
		r.t.Errorf("the token is shown by %s", path)
	}
	return resp.StatusCode, string(b)
}

func (r *running) has(path, text string) bool {
	_, body := r.get(path)
	return strings.Contains(body, text)
}

// await waits until ok.
func (r *running) await(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for r.adminAddr() == "" || !ok() {
		select {
		case <-tick.C:
		case <-r.done:
			r.t.Fatalf("the agent has ended with %v", r.err)
		case <-limit.C:
			r.t.Fatalf("it is not so that %s", what)
		}
	}
}

// names starts a server that tells its name to each connection.
func names(t *testing.T, name string) (addr string) {
	t.Helper()
	return serve(t, func(c net.Conn) { io.WriteString(c, name+"\n") })
}

// serve starts a server that does something with each connection in turn.
func serve(t *testing.T, do func(net.Conn)) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			do(c)
			c.Close()
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// whoAt connects and returns the name that is told.
func whoAt(addr string) string {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

// free returns an address that nobody has, below the ports that the kernel
// gives to clients.
func free(t *testing.T) string {
	t.Helper()
	for {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000)))
		if err != nil {
			continue
		}
		defer ln.Close()
		return ln.Addr().String()
	}
}

// The catalog's services become clusters and listeners; what is in the way of
// one of them hinders no other.
func TestCatalogListeners(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	web, sql, more := free(t), free(t), free(t)
	f := startFakeConsul(t, map[string]fakeService{
		"web":   {names(t, "web"), web},
		"sql":   {names(t, "sql"), sql},
		"busy":  {names(t, "busy"), taken.Addr().String()},
		"wide":  {names(t, "wide"), "0.0.0.0:1"},
		"quiet": {names(t, "quiet"), ""},
	})
	r := startRunning(t, fmt.Sprintf(`
consul {
  address   = %q
  token     = %q
  listeners = true
}
cluster "web" {
  discovery "consul" {}
  health_check "tcp" { interval = "1s" }
}
cluster "quiet" {
  discovery "consul" {}
}
listener "quiet" {
  address = "127.0.0.1:0"
  cluster = "quiet"
}
`, f.URL, consulToken))
	r.await("it is ready", func() bool { code, _ := r.get("/ready"); return code == 200 })
	for addr, want := range map[string]string{web: "web", sql: "sql", r.listenerAddrs()["quiet"].String(): "quiet"} {
		if got := whoAt(addr); got != want {
			t.Errorf("a connection to %s leads to %q, want %s", addr, got, want)
		}
	}
	for path, lines := range map[string][]string{
		"/clusters":  {"web::gatehouse_origin::file", "sql::gatehouse_origin::consul", "busy::gatehouse_origin::consul", "quiet::gatehouse_origin::file"},
		"/listeners": {"web@" + web + "::" + web, "sql@" + sql + "::" + sql, "busy@" + taken.Addr().String() + "::gatehouse_unsupported::", `"wide"@"0.0.0.0:1"::gatehouse_unsupported::not a loopback address`},
		"/stats/prometheus": {
			"\ngatehouse_consul_requests ", "\ngatehouse_consul_watches 4\n", "\ngatehouse_consul_connections ", "\ngatehouse_consul_shared_queries 0\n",
			"\ngatehouse_consul_failures 0\n", "\ngatehouse_consul_throttled 0\n", "\ngatehouse_consul_index_resets 0\n", "\ngatehouse_consul_instances_refused 0\n",
			`gatehouse_source_empty_held{cluster="web"} 0`, `gatehouse_source_confirmed_age{cluster="web"} `,
		},
		"/clusters?format=json": {`"confirmed": "`},
	} {
		for _, line := range lines {
			if !r.has(path, line) {
				_, body := r.get(path)
				t.Errorf("%s lacks %q:\n%s", path, line, body)
			}
		}
	}

	f.change(func(s map[string]fakeService) {
		delete(s, "sql")
		s["late"] = fakeService{s["busy"].addr, sql} // the address of one that has left
		s["web"] = fakeService{s["web"].addr, more}
	})
	r.await("the new service has the address", func() bool { return whoAt(sql) == "busy" })
	r.await("the moved one answers", func() bool { return whoAt(more) == "web" })
	if r.has("/listeners", "web@"+web) || r.has("/clusters", "sql::") {
		t.Error("what has left is there still")
	}
	r.end()
}

// The agent is a service as long as it runs, also while it drains.
func TestRegistration(t *testing.T) {
	f := startFakeConsul(t, nil)
	backend := serve(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	r := startRunning(t, fmt.Sprintf(`
node { id = "node-7" }
consul {
  address = %q
  token   = %q
  register {
    tags           = ["edge"]
    check_interval = "3s"
  }
}
cluster "web" {
  discovery "static" { endpoints = [%q] }
}
listener "web" {
  address = "127.0.0.1:0"
  cluster = "web"
}
`, f.URL, consulToken, backend))
	r.await("it is registered", func() bool { return f.service("gatehouse-node-7") != nil })
	s := f.service("gatehouse-node-7")
	check, _ := s["Check"].(map[string]any)
	url := "http://" + r.adminAddr() + "/ready"
	if s["Name"] != "gatehouse" || s["Address"] != "127.0.0.1" || fmt.Sprint(s["Tags"]) != "[edge]" || check["HTTP"] != url || check["Interval"] != "3s" {
		t.Errorf("registered as %v, want a check of %s", s, url)
	}
	r.await("the check passes", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})

	c, err := net.Dial("tcp", r.listenerAddrs()["web"].String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.await("the connection is open", func() bool { return r.has("/stats/prometheus", `gatehouse_cluster_active{cluster="web"} 1`) })
	close(r.drain)
	r.await("it drains", func() bool { code, _ := r.get("/ready"); return code == 503 })
	if f.service("gatehouse-node-7") == nil {
		t.Error("it is not registered while it drains")
	}
	c.Close()
	r.wait()
	if f.service("gatehouse-node-7") != nil {
		t.Error("it is registered after the end")
	}

	// A Consul that says nothing does not keep the agent.
	r = startRunning(t, fmt.Sprintf("consul {\n  address = %q\n  token = %q\n  register {}\n}\n", f.URL, consulToken))
	r.await("it is registered", func() bool { return f.service("gatehouse-host") != nil })
	f.hangs.Store(true)
	r.end()
}

// Without Consul the agent runs, says what it waits for, is ready after
// initial_timeout, and ends when it is to.
func TestConsulAway(t *testing.T) {
	for name, address := range map[string]string{"away": free(t), "refused": ""} {
		t.Run(name, func(t *testing.T) {
			token := consulToken
			if address == "" {
				address, token = startFakeConsul(t, nil).URL, consulToken+"-old"
			}
			r := startRunning(t, fmt.Sprintf(`
initial_timeout = "0s"
consul {
  address   = %q
  token     = %q
  listeners = true
  register {}
}
cluster "web" {
  discovery "consul" {}
}
cluster "here" {
  discovery "static" { endpoints = [%q] }
}
listener "here" {
  address = "127.0.0.1:0"
  cluster = "here"
}
`, address, token, names(t, "here")))
			r.await("it says what it waits for", func() bool {
				code, body := r.get("/ready")
				return code == 503 && strings.Contains(body, `cluster "web": discovery: service "web": consul at `) && strings.Contains(body, "listeners of the catalog: consul at ")
			})
			r.await("what has nothing to do with it runs", func() bool { return whoAt(r.listenerAddrs()["here"].String()) == "here" })
			if !r.has("/stats/prometheus", "gatehouse_consul_failures ") || r.has("/stats/prometheus", "gatehouse_consul_failures 0\n") {
				t.Error("failures are not counted")
			}
			r.end()
		})
	}
	r := startRunning(t, fmt.Sprintf("initial_timeout = \"20ms\"\nconsul { address = %q }\ncluster \"web\" {\n  discovery \"consul\" {}\n}\n", free(t)))
	r.await("it is ready", func() bool { code, _ := r.get("/ready"); return code == 200 })
	r.end()
}
