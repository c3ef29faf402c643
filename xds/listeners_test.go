package xds

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/forwarder/rbac"
	"gatehouse.internal/internal/tlsconf/tlstest"
	"gatehouse.internal/xds/internal/core"
)

// String describes an update in a line.
func (u ListenersUpdate) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "known=%v", u.Known)
	for _, l := range u.Listeners {
		fmt.Fprintf(&b, " %s", l.Name)
		if l.Unsupported != "" {
			fmt.Fprintf(&b, "(%s)", l.Unsupported)
		}
	}
	for _, r := range u.Rejected {
		fmt.Fprintf(&b, " !%s: %s", r.Name, r.Reason)
	}
	if u.Err != nil {
		fmt.Fprintf(&b, " err: %v", u.Err)
	}
	return b.String()
}

// Listeners are watched as clusters are, in both variants: what is invalid is
// refused by name and keeps its last version, what can't be run is acknowledged, and
// what is gone is gone.
func TestListeners(t *testing.T) {
	for _, variant := range []core.Variant{core.StateOfTheWorld, core.Delta} {
		t.Run(variant.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testListeners(t, variant) })
		})
	}
}

func testListeners(t *testing.T, variant core.Variant) {
	f := newFake(t, func(f *fakeServer) { f.variant = variant })
	var mu sync.Mutex
	var got []string
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.client.WatchListeners(ctx, func(u ListenersUpdate) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, u.String())
		}); err != context.Canceled {
			t.Errorf("WatchListeners returned %v", err)
		}
	})
	defer wg.Wait()
	defer cancel()
	last := func(want string) {
		t.Helper()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(got) == 0 || got[len(got)-1] != want {
			t.Errorf("updates %q, want %q last", got, want)
		}
	}
	bad := func(l *listenerv3.Listener) { l.FilterChains[0].Filters[0].Name = "" }
	http := func(l *listenerv3.Listener) {
		l.FilterChains[0].Filters = []*listenerv3.Filter{netFilter(t, "http", &hcmv3.HttpConnectionManager{})}
	}
	f.expect(ListenerType)
	f.respond(ListenerType, 1, tcpListener(t, "b"), tcpListener(t, "a"), tcpListener(t, "http", http))
	if r := f.next(); r.Error != "" {
		t.Errorf("refused: %s", r.Error)
	}
	last(`known=true a b http(filter_chains[0].filters[0] "http")`)
	f.respond(ListenerType, 2, tcpListener(t, "b", bad), tcpListener(t, "a"), tcpListener(t, "http", http))
	if r := f.next(); !strings.Contains(r.Error, `"b": filter_chains[0].filters[0].name: missing`) {
		t.Errorf("answer %+v", r)
	}
	last(`known=true a b http(filter_chains[0].filters[0] "http") !b: filter_chains[0].filters[0].name: missing`)
	if variant == core.Delta {
		f.stream().responses <- core.Response{Type: ListenerType, Nonce: "n3", Version: "3", Removed: []string{"http"}}
		f.next()
		last(`known=true a b !b: filter_chains[0].filters[0].name: missing`)
		return
	}
	f.respond(ListenerType, 3, tcpListener(t, "a"))
	f.next()
	last("known=true a")
}

func FuzzDecodeListener(f *testing.F) {
	add := func(m proto.Message) { f.Add(marshal(f, m)) }
	add(tcpListener(f, "l"))
	add(tcpListener(f, "l", func(l *listenerv3.Listener) { l.UseOriginalDst = yes() }))
	add(tcpListener(f, "l", guarded(f, &rbacv3.RBAC{Rules: rules(rbacconfigv3.RBAC_DENY, anyPermission(), principalNamed(regex("spiffe://[^/]+/x")))})))
	ca := tlstest.NewCA(f, "ca")
	add(tcpListener(f, "l", secured(f, downstreamTLS(ca, ca.Issue(f, tlstest.Leaf{})))))
	add(tcpListener(f, "l", matching(&listenerv3.FilterChainMatch{DestinationPort: u32(1), ServerNames: []string{"*.a"}, PrefixRanges: []*corev3.CidrRange{cidr("10.0.0.0", 8)}})))
	f.Add([]byte("junk"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, v, err := decodeListener(b)
		switch {
		case err != nil && v != nil:
			t.Errorf("both %v and %v", v, err)
		case err == nil && (name == "" || v.(*Listener).Name != name):
			t.Errorf("name %q of %v", name, v)
		case err == nil && v.(*Listener).Unsupported == "" && len(v.(*Listener).Addresses) == 0:
			t.Errorf("a listener without an address: %+v", v)
		}
		if err != nil {
			return
		}
		for _, c := range v.(*Listener).Chains { // what was taken can be run
			if c.Unsupported == "" && (len(c.TCPProxy.Clusters) == 0 || c.TCPProxy.MaxConnectAttempts < 1) {
				t.Errorf("a chain that leads nowhere: %+v", c)
			}
			for _, r := range c.RBAC {
				if _, err := rbac.New(r.Rules, r.Shadow); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
