package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/forwarder"
	"gatehouse.internal/lbcore"
)

// A listener's socket is set up as its settings say, and as new ones say while
// it is open.
func TestListenerSocket(t *testing.T) {
	r := start(t)
	one := listen(t, "one")
	path := filepath.Join(t.TempDir(), "s.sock")
	l := listenerOf("l", "web")
	l.Address = lbcore.UnixAddr(path)
	spec := func(u config.Unix) Spec {
		l.Unix = u
		return Spec{Clusters: []config.Cluster{clusterOf("web", static(one.Endpoint))}, Listeners: []config.Listener{l}}
	}
	mode := func() fs.FileMode {
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode()
	}
	r.apply(spec(config.Unix{Mode: 0o600}))
	if m := mode(); m != fs.ModeSocket|0o600 {
		t.Errorf("mode %v", m)
	}
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	c := r.mustDial("l", "one")
	defer c.Close()
	r.apply(spec(config.Unix{Mode: 0o666}))
	if m := mode(); m != fs.ModeSocket|0o666 {
		t.Errorf("after a reload the mode is %v", m)
	}
	if r.listener("l").Stats.Accepted != 1 {
		t.Error("not the same listener")
	}
	err := r.Apply(t.Context(), Spec{Listeners: []config.Listener{l, func() config.Listener {
		other := listenerOf("other", "web")
		other.Address, other.Unix = lbcore.UnixAddr(path+"2"), config.Unix{User: "no such user"}
		return other
	}()}})
	if err == nil || !strings.Contains(err.Error(), `listener "other"`) || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("an unknown user: %v", err)
	}
}

// Clusters and listeners that no file defines have the default keepalive.
func TestKeepaliveDefault(t *testing.T) {
	for in, want := range map[config.TCPKeepalive]forwarder.Keepalive{
		{}:                               {},
		{KeepaliveInterval: time.Second}: {Time: -1, Interval: time.Second, UserTimeout: -1},
		{KeepaliveTime: time.Minute, KeepaliveInterval: time.Second, UserTimeout: time.Hour}: {Time: time.Minute, Interval: time.Second, UserTimeout: time.Hour},
	} {
		if got := keepalive(in); got != want {
			t.Errorf("%+v is %+v, want %+v", in, got, want)
		}
	}
}

// An endpoint whose first address is refused is reached at another one.
func TestAdditionalAddresses(t *testing.T) {
	r := start(t)
	one, away := listen(t, "one"), deaf(t)
	away.Additional = lbcore.AddrsOf(one.Endpoint.Addr)
	r.apply(Spec{Clusters: []config.Cluster{clusterOf("web", static(away))}, Listeners: []config.Listener{listenerOf("l", "web")}})
	within(t, "the cluster is warm", func() bool { return len(r.Waiting()) == 0 })
	r.mustDial("l", "one").Close()
	if st := r.cluster("web").Totals; st.Opened != 1 || st.Failed != 0 {
		t.Errorf("totals are %+v", st)
	}
}
