package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The endpoints file is edited under load, and broken for a while.
func TestFileEdits(t *testing.T) {
	a, b, c := startBackend(t), startBackend(t), startBackend(t)
	file := filepath.Join(t.TempDir(), "web.json")
	list := func(addrs ...string) {
		t.Helper()
		write(t, file, fmt.Sprintf(`{"endpoints": ["%s"]}`, strings.Join(addrs, `", "`)))
	}
	list(a.addr, b.addr)
	p := startAgent(t, fmt.Sprintf(`
cluster "web" {
  discovery "file" { path = %q }
}
`, file)+webListener)
	p.awaitReady()
	tr := startTraffic(t, p.listener("web"))
	tr.lands(t, a, b)

	list(b.addr, c.addr)
	eventually(t, "the edit is seen", func() bool { return slices.Equal(p.cluster("web").ready, sorted(b.addr, c.addr)) })
	tr.lands(t, b, c)

	write(t, file, "{\n  \"endpoints\": [\"127.0.0.1\"]\n}")
	eventually(t, "the broken file is reported", func() bool { return p.cluster("web").state == "stale" })
	if got := p.cluster("web").err; !strings.Contains(got, file+":2:") {
		t.Errorf("the error does not say where the file is wrong: %s", got)
	}
	tr.lands(t, b, c)

	// Another mistake is told of too, in the log as in the dump.
	write(t, file, "{\n\n  \"endpoints\": 1\n}")
	eventually(t, "the other mistake is reported", func() bool { return strings.Contains(p.cluster("web").err, file+":3:") })
	eventually(t, "the other mistake is logged", func() bool { return strings.Contains(p.output(), file+":3:") })
	tr.lands(t, b, c)

	list(a.addr)
	eventually(t, "the mended file is seen", func() bool {
		return slices.Equal(p.cluster("web").ready, []string{a.addr}) && p.cluster("web").state == "fresh"
	})
	tr.lands(t, a)
	tr.stop()
	tr.noErrors(t)
}

func sorted(s ...string) []string {
	slices.Sort(s)
	return s
}
