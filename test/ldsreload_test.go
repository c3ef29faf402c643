package test

import (
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// The control plane's listeners outlive a reload that is not about them, and a change
// of name at the same address; they go and come with their setting, and are there
// after a restart while the control plane is away.
func TestLDSReload(t *testing.T) {
	cp := newControl(t)
	a := startBackend(t)
	addr := freePorts(t, 1)[0]
	_, dir := stateDir(t)
	cp.start()
	cp.set(staticCluster(t, "a", a.addr), lds(t, "one", addr, tcpProxy(t, "a")))
	head := "admin { address = \"127.0.0.1:0\" }\n" + dir
	file := configFile(t, dir+cp.listening(""))
	p := startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	tr := startTraffic(t, addr)
	tr.lands(t, a)

	// Another client of the control plane gives the same.
	write(t, file, head+strings.Replace(cp.listening(""), "xds {", "xds {\n  user_agent_name = \"other\"", 1))
	if r := p.mustReload(http.StatusOK, "in_force"); !slices.Equal(r.Settings, []string{"xds.user_agent_name"}) {
		t.Errorf("%+v", r)
	}
	tr.lands(t, a)
	cp.set(staticCluster(t, "a", a.addr), lds(t, "two", addr, tcpProxy(t, "a")))
	eventually(t, "the listener has its new name", func() bool { all := p.shown(); return all["two"].Origin == "xds" && len(all["two"].Chains) == 1 })
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
	if _, body := p.get("/config_dump"); !strings.Contains(body, "envoy.admin.v3.ListenersConfigDump") || !strings.Contains(body, "two-chain") {
		t.Errorf("/config_dump:\n%s", body)
	}

	write(t, file, head+cp.node(""))
	p.mustReload(http.StatusOK, "in_force")
	if _, err := ask(t.Context(), addr); err == nil {
		t.Error("listeners that are not wanted any more are open")
	}
	write(t, file, head+cp.listening(""))
	p.mustReload(http.StatusOK, "in_force")
	eventually(t, "the listener is open again", func() bool { who, err := ask(t.Context(), addr); return err == nil && who == a.addr })
	cp.acked(resourcev3.ListenerType)

	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	cp.stop()
	p = startAgentWith(t, "run", "-config-file", file, "-log-json")
	p.awaitReady()
	if who, err := ask(t.Context(), addr); err != nil || who != a.addr {
		t.Errorf("after a restart without the control plane: answered by %q, %v", who, err)
	}
	if _, body := p.get("/ready"); !strings.Contains(body, "listeners of the control plane: stale, ") {
		t.Errorf("/ready:\n%s", body)
	}
	cp.set(staticCluster(t, "a", a.addr))
	cp.start()
	eventually(t, "the deleted listener is gone", func() bool { _, err := ask(t.Context(), addr); return err != nil })
}
