package consultest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Proxy starts Consul's own proxy of the service mesh, "consul connect proxy", with
// these arguments, as a client of the server's agent by ManagementToken. It is killed
// when the test ends, and its log is shown if the test has failed by then. It may be
// called from the test's goroutine only.
func (s *Server) Proxy(args ...string) {
	s.t.Helper()
	path, err := binary()
	s.must("start a proxy", err)
	file := filepath.Join(s.t.TempDir(), "proxy.log")
	log, err := os.Create(file)
	s.must("start a proxy", err)
	defer log.Close()
	args = append([]string{"connect", "proxy", "-http-addr", s.Addr(), "-token", ManagementToken}, args...)
	p := &process{cmd: exec.Command(path, args...), started: make(chan error, 1), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = dieWithParent()
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONSUL_") })
	go p.run()
	s.must("start a proxy", <-p.started)
	s.t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if text, err := os.ReadFile(file); s.t.Failed() && err == nil {
			s.t.Logf("the log of consul %s:\n%s", strings.Join(args[:2], " "), tail(text))
		}
	})
}
