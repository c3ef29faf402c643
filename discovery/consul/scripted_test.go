package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// scripted is a Consul that does what a test says. It is an http.RoundTripper,
// which needs no socket and so runs in virtual time, and an http.Handler. The
// fields below mu are changed by change only, which ends all waits too, so that
// they look again.
type scripted struct {
	mu      sync.Mutex
	changed chan struct{} // closed by the next change
	cat     *catalog

	// hook, if not nil, answers in place of the model if it returns an answer.
	// It runs for each request as it arrives.
	hook func(call) *reply
	// down refuses connections, and cuts those that wait.
	down bool
	// follower is what the servers that answer stale reads have of the catalog,
	// if not the same as the leader; contact is how long it is that they heard
	// of it, and orphan that they know of none, so that only they answer.
	follower *catalog
	contact  time.Duration
	orphan   bool
	// streaming is the backend that does not tell of the leader.
	streaming bool
	// mute is the beginning of paths whose waits go on when a snapshot is
	// restored, as streams do; empty means none.
	mute string
	// age is that of cached answers.
	age time.Duration
	// tokens are the valid ones; nil means that there are no ACLs. Whoever
	// comes without may read nothing. nodeless may not read nodes.
	tokens   map[string]bool
	nodeless map[string]bool
	// lie has a wait whose token is deleted meanwhile end with an empty list.
	lie bool
	// lieHeader edits the header of it.
	lieHeader func(http.Header)
	// limit is how many requests there may be at once, 0 means any number.
	limit int
	// noFilter refuses filters, as old versions do.
	noFilter bool
	// mesh is what the agent knows of the service mesh.
	mesh scriptedMesh
	// agent are the services of the agent itself.
	agent map[string]*api.AgentServiceRegistration

	calls          []call
	waits          []call // that wait for a change
	inFlight, peak int
}

// call is a request as it arrived.
type call struct {
	number int
	at     time.Time
	method string
	host   string
	path   string
	query  url.Values
	token  string
	auth   string
	body   []byte
}

func (c call) String() string { return fmt.Sprintf("%s %s?%s", c.method, c.path, c.query.Encode()) }

// index is the one that the request waits for, 0 if it does not.
func (c call) index() string { return c.query.Get("index") }

// reply is an answer. err is that of the connection, hang means none at all.
type reply struct {
	status int // 0 means 200
	header http.Header
	body   io.Reader
	err    error
	hang   bool
	length int64 // 0: as body is
	final  bool  // ends a wait
	value  any   // is the body, if not nil
}

// answers returns a reply with this status and text.
func answers(status int, text string) *reply {
	return &reply{status: status, body: strings.NewReader(text)}
}

var refusedConnection = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func newScripted() *scripted {
	return &scripted{changed: make(chan struct{}), cat: newCatalog(), agent: map[string]*api.AgentServiceRegistration{}}
}

// change changes the catalog or a switch, and ends all waits.
func (s *scripted) change(edit func(*catalog)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(s.cat)
	close(s.changed)
	s.changed = make(chan struct{})
}

// since returns the calls from position from on whose path begins with prefix.
func (s *scripted) since(from int, prefix string) (list []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls[from:] {
		if strings.HasPrefix(c.path, prefix) {
			list = append(list, c)
		}
	}
	return list
}

func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// most returns how many requests there were at once.
func (s *scripted) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak
}

// RoundTrip implements http.RoundTripper.
func (s *scripted) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := s.serve(req)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{
		StatusCode: r.status, Status: http.StatusText(r.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.header, Body: io.NopCloser(r.body), ContentLength: -1, Request: req,
	}
	return resp, nil
}

// ServeHTTP implements http.Handler.
func (s *scripted) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r, err := s.serve(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), r.header)
	if r.length > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(r.length, 10))
	}
	w.WriteHeader(r.status)
	if _, err := io.Copy(w, r.body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// serve answers a request. The error is that of its connection.
func (s *scripted) serve(req *http.Request) (*reply, error) {
	c := call{
		at: time.Now(), method: req.Method, host: req.URL.Host, path: req.URL.Path, query: req.URL.Query(),
		token: req.Header.Get("X-Consul-Token"), auth: req.Header.Get("Authorization"),
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	if req.Body != nil {
		c.body, _ = io.ReadAll(req.Body)
	}
	s.mu.Lock()
	c.number = len(s.calls)
	s.calls = append(s.calls, c)
	s.inFlight++
	s.peak = max(s.peak, s.inFlight)
	var r *reply
	if s.limit > 0 && s.inFlight > s.limit {
		r = answers(http.StatusTooManyRequests, "Your IP is issuing too many concurrent connections")
	} else if s.hook != nil {
		r = s.hook(c)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inFlight--
		s.mu.Unlock()
	}()
	if r == nil {
		r = s.model(req.Context(), c)
	}
	if r.hang {
		<-req.Context().Done()
		r = &reply{err: req.Context().Err()}
	}
	if r.err != nil {
		return nil, r.err
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.header == nil {
		r.header = headers(1)
	}
	if r.value != nil {
		text, err := json.Marshal(r.value)
		if err != nil {
			panic(err)
		}
		r.body = bytes.NewReader(text)
	}
	if r.body == nil {
		r.body = strings.NewReader("")
	}
	return r, nil
}

// headers are those of an answer of the leader.
func headers(index uint64) http.Header {
	h := http.Header{}
	h.Set("X-Consul-Index", strconv.FormatUint(index, 10))
	h.Set("X-Consul-Knownleader", "true")
	h.Set("X-Consul-Lastcontact", "0")
	h.Set("X-Consul-Effective-Consistency", "leader")
	return h
}

// model answers as Consul does.
func (s *scripted) model(ctx context.Context, c call) *reply {
	if strings.HasPrefix(c.path, "/v1/agent/connect/") {
		return s.meshAPI(ctx, c)
	}
	if strings.HasPrefix(c.path, "/v1/agent/") {
		return s.agentAPI(c)
	}
	ask, r := s.route(c)
	if r != nil {
		return r
	}
	minimum, _ := strconv.ParseUint(c.index(), 10, 64)
	wait := 5 * time.Minute
	if text := c.query.Get("wait"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return answers(http.StatusBadRequest, "Invalid wait time")
		}
		wait = min(d, 10*time.Minute)
	}
	if minimum == 0 {
		wait = 0
	}
	timer := time.NewTimer(wait + wait/16) // the most that it adds
	defer timer.Stop()
	var epoch, watched uint64
	late := false
	for blocked := false; ; blocked = true {
		s.mu.Lock()
		changed := s.changed
		r, v := s.look(c, ask, blocked)
		s.mu.Unlock()
		last := minimum == 0 || late || r.final || blocked && v.epoch != epoch && !s.muted(c)
		if last || v.index > minimum && (!blocked || v.watched != watched) {
			return r
		}
		epoch, watched = v.epoch, v.watched
		if !blocked {
			defer s.wait(c)()
		}
		select {
		case <-changed:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			return &reply{err: ctx.Err()}
		}
	}
}

func (s *scripted) muted(c call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mute != "" && strings.HasPrefix(c.path, s.mute)
}

// wait counts c among those that wait, until the function is called.
func (s *scripted) wait(c call) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = append(s.waits, c)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.waits, func(d call) bool { return d.number == c.number })
		s.waits = slices.Delete(s.waits, i, i+1)
	}
}

// look answers with what there is now. It holds s.mu.
func (s *scripted) look(c call, ask func(*catalog) view, blocked bool) (*reply, view) {
	_, stale := c.query["stale"]
	_, cached := c.query["cached"]
	cat := s.cat
	if stale && s.follower != nil {
		cat = s.follower
	}
	v := ask(cat)
	v.epoch = cat.epoch
	r := &reply{header: headers(max(v.index, 1))}
	switch {
	case s.down && blocked:
		return &reply{final: true, err: io.ErrUnexpectedEOF}, v
	case s.down:
		return &reply{final: true, err: refusedConnection}, v
	case s.orphan && !stale:
		r = answers(http.StatusInternalServerError, "No cluster leader")
		r.final = true
		return r, v
	case s.tokens == nil || s.tokens[c.token] && !s.nodeless[c.token]:
	case c.token == "" || s.nodeless[c.token]:
		r.header.Set("X-Consul-Results-Filtered-By-Acls", "true")
		v.value = empty(v.value)
	case blocked && s.lie:
		r = &reply{final: true, header: headers(v.index + 1)}
		if s.lieHeader != nil {
			s.lieHeader(r.header)
		}
		v.value = empty(v.value)
	default:
		r = answers(http.StatusForbidden, "ACL not found")
		r.final = true
		return r, v
	}
	if stale {
		r.header.Set("X-Consul-Lastcontact", strconv.FormatInt(s.contact.Milliseconds(), 10))
		r.header.Set("X-Consul-Knownleader", strconv.FormatBool(!s.orphan))
	}
	if s.streaming && c.index() != "" && strings.HasPrefix(c.path, "/v1/health/service/") {
		r.header.Set("X-Consul-Query-Backend", api.QueryBackendStreaming)
		r.header.Set("X-Consul-Knownleader", "false")
	}
	if cached {
		r.header.Set("X-Cache", "HIT")
		r.header.Set("Age", strconv.Itoa(int(s.age.Seconds())))
	}
	r.value = v.value
	return r, v
}

// empty is an answer of the same kind that lists nothing.
func empty(value any) any {
	switch value.(type) {
	case map[string][]string:
		return map[string][]string{}
	case api.PreparedQueryExecuteResponse:
		return api.PreparedQueryExecuteResponse{}
	}
	return []int{}
}

// route finds out what a request asks for.
func (s *scripted) route(c call) (func(*catalog) view, *reply) {
	metaKey := ""
	if filter := c.query.Get("filter"); filter != "" {
		var ok bool
		if metaKey, ok = strings.CutSuffix(filter, `" in ServiceMeta`); !ok || s.noFilter {
			return nil, answers(http.StatusBadRequest, "Failed to create boolean expression evaluator")
		}
		metaKey = strings.TrimPrefix(metaKey, `"`)
	}
	if name, ok := strings.CutPrefix(c.path, "/v1/health/service/"); ok {
		return func(cat *catalog) view { return cat.health(name) }, nil
	}
	if status, ok := strings.CutPrefix(c.path, "/v1/health/state/"); ok {
		return func(cat *catalog) view { return cat.state(status) }, nil
	}
	if name, ok := strings.CutPrefix(c.path, "/v1/catalog/service/"); ok {
		return func(cat *catalog) view { return cat.service(name, metaKey) }, nil
	}
	if name, ok := strings.CutPrefix(c.path, "/v1/query/"); ok {
		name = strings.TrimSuffix(name, "/execute")
		return func(cat *catalog) view { return cat.execute(name) }, nil
	}
	switch c.path {
	case "/v1/catalog/services":
		return func(cat *catalog) view { return cat.services(metaKey) }, nil
	case "/v1/catalog/nodes":
		return (*catalog).allNodes, nil
	}
	return nil, answers(http.StatusNotFound, "404 page not found")
}

// agentAPI is what an agent keeps of its own.
func (s *scripted) agentAPI(c call) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return &reply{err: refusedConnection}
	}
	if s.tokens != nil && !s.tokens[c.token] {
		return answers(http.StatusForbidden, "Permission denied")
	}
	if id, ok := strings.CutPrefix(c.path, "/v1/agent/service/deregister/"); ok && c.method == http.MethodPut {
		delete(s.agent, id)
		return answers(http.StatusOK, "")
	}
	if c.path == "/v1/agent/service/register" && c.method == http.MethodPut {
		var reg api.AgentServiceRegistration
		if err := json.Unmarshal(c.body, &reg); err != nil {
			return answers(http.StatusBadRequest, "Request decode failed")
		}
		s.agent[reg.ID] = &reg
		return answers(http.StatusOK, "")
	}
	if id, ok := strings.CutPrefix(c.path, "/v1/agent/service/"); ok && c.method == http.MethodGet {
		if s.agent[id] == nil {
			return answers(http.StatusNotFound, fmt.Sprintf("unknown service ID %q", id))
		}
		text, _ := json.Marshal(api.AgentService{ID: id, Service: s.agent[id].Name})
		return answers(http.StatusOK, string(text))
	}
	return answers(http.StatusNotFound, "404 page not found")
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// cut is a body that ends in an error after its text.
func cut(text string) *reply {
	return &reply{body: io.MultiReader(strings.NewReader(text), broken{}), length: int64(len(text) + 100)}
}

// broken is a connection that is reset.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// text is the body that says value.
func (s *scripted) text(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// names returns the paths of calls, sorted.
func names(calls []call) (list []string) {
	for _, c := range calls {
		list = append(list, c.path)
	}
	slices.Sort(list)
	return list
}

var errReset = errors.New("read tcp 127.0.0.1:41000->127.0.0.1:8500: read: connection reset by peer")
