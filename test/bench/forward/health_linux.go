package forward

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"
)

// health measures what probes cost. The relay took idle bytes without servers, and
// unchecked ones with them and without checks.
func (w *world) health(ctx context.Context, idle, unchecked int) (Values, error) {
	if err := pause(ctx, w.Each/2); err != nil { // what came with the start ends
		return nil, err
	}
	from, err := w.costs()
	if err != nil {
		return nil, err
	}
	probes, err := w.probesEnded(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	// Whole intervals: probes need not be spread evenly over one.
	if err := pause(ctx, max(10*w.Each/w.Interval, 1)*w.Interval); err != nil {
		return nil, err
	}
	to, err := w.costs()
	if err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	ended, err := w.probesEnded(ctx)
	if err != nil {
		return nil, err
	}
	rss, err := w.procs.resident()
	if err != nil {
		return nil, err
	}
	vs := Values{Rest: 100 * (to.relay - from.relay).Seconds() / took, Base: float64(idle), Over: float64(rss - idle), Checks: float64(rss - unchecked)}
	if w.Relay == Gatehouse {
		vs[Probes] = (ended - probes) / took
	}
	return vs, nil
}

// probesEnded returns how many probes there were, 0 of a HAProxy.
func (w *world) probesEnded(ctx context.Context) (float64, error) {
	if w.Relay != Gatehouse {
		return 0, nil
	}
	m, err := scrape(ctx, w.admin)
	return m[`gatehouse_health_probes{kind="tcp",result="passed"}`], err
}

// probed says if all servers have passed.
func (w *world) probed(ctx context.Context) error {
	if w.Relay == Gatehouse {
		m, err := scrape(ctx, w.admin)
		if err != nil {
			return err
		}
		for i := range w.Clusters {
			if n := m[fmt.Sprintf(`gatehouse_cluster_ready{cluster="c%d"}`, i)]; int(n) < w.Servers {
				return fmt.Errorf("%v of %d servers are ready", n, w.Servers)
			}
		}
		return nil
	}
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", w.listen), time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

// probing returns a Gatehouse that has no work but to probe.
func (w *world) probing() (*exec.Cmd, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "node { id = \"bench\" }\nadmin { address = \"127.0.0.1:%d\" }\nlog { level = \"warn\" }\nrelay { event_loops = %d }\n", w.admin, threads)
	var servers strings.Builder
	for i := range w.Servers {
		fmt.Fprintf(&servers, "   %q,\n", w.server(i))
	}
	// One cluster reads a file, as large ones do. Many don't: each would take one of
	// the few watchers that a user may have.
	discovery := fmt.Sprintf("discovery \"static\" {\n  endpoints = [\n%s  ]\n }\n", &servers)
	if w.Clusters == 1 {
		path, err := w.write("servers.hcl", fmt.Sprintf("endpoints = [\n%s]\n", &servers))
		if err != nil {
			return nil, err
		}
		discovery = fmt.Sprintf("discovery \"file\" { path = %q }\n", path)
	}
	for c := range w.Clusters {
		fmt.Fprintf(&b, "cluster \"c%d\" {\n %s", c, discovery)
		if w.Interval > 0 {
			fmt.Fprintf(&b, " health_check \"tcp\" {\n  interval = %q\n  timeout = %q\n }\n", w.Interval, min(w.Interval, time.Second))
		}
		fmt.Fprint(&b, "}\n")
	}
	path, err := w.write("gatehouse.hcl", b.String())
	return exec.Command(w.Exe, "run", "-config-file", path), err
}
