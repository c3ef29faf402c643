package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// Every combination of what is said of an endpoint is shown in the words of the
// table in docs/health.md.
func TestHealthTable(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ what, field, flag string }
	groups := make([][]row, 6)
	of := map[string]int{"listed": 0, "not listed any more": 0, "not listed any more, kept by `on_absent`": 0, "enabled": 1, "disabled": 1, "a weight above 0": 2, "weight 0": 2, "not ejected": 4, "ejected": 4}
	_, table, _ := strings.Cut(string(text), "| --- |")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 8 || strings.Contains(line, "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := row{cells[2], cells[6], cells[7]}
		g, ok := of[r.what]
		switch {
		case strings.HasPrefix(r.what, "status "):
			g = 3
		case cells[1] == "checks":
			g = 5
		case !ok:
			t.Fatalf("the table has a row of its own: %s", r.what)
		}
		groups[g] = append(groups[g], r)
	}
	set := map[string]func(*node.EndpointStatus){
		"not listed any more":                      func(e *node.EndpointStatus) { e.Withdrawn = true },
		"not listed any more, kept by `on_absent`": func(e *node.EndpointStatus) { e.Absent = true },
		"all pass, one degraded":                   func(e *node.EndpointStatus) { e.Health, e.Degraded = lbcore.HealthDegraded, true },
		"disabled":                                 func(e *node.EndpointStatus) { e.Disabled = true },
		"weight 0":                                 func(e *node.EndpointStatus) { e.Weight = 0 },
		"ejected":                                  func(e *node.EndpointStatus) { e.Ejected = true },
		"one unhealthy":                            func(e *node.EndpointStatus) { e.Health = lbcore.HealthUnhealthy },
		"one unknown":                              func(e *node.EndpointStatus) { e.Health = lbcore.HealthUnknown },
		"one unknown, `initial = \"healthy\"`":     func(e *node.EndpointStatus) { e.Health = lbcore.HealthUnknown },
	}
	for s := lbcore.StatusUnknown; s <= lbcore.StatusDegraded; s++ {
		set["status "+s.String()] = func(e *node.EndpointStatus) { e.Status, e.Degraded = s, s == lbcore.StatusDegraded }
	}
	n := 0
	var try func([]row)
	try = func(said []row) {
		if len(said) < len(groups) {
			for _, r := range groups[len(said)] {
				try(append(said[:len(said):len(said)], r))
			}
			return
		}
		n++
		e := node.EndpointStatus{Endpoint: lbcore.Endpoint{Addr: addr("192.0.2.1:80"), Weight: 1}, Health: lbcore.HealthHealthy, SlowStart: 1, SuccessRate: -1}
		wantFields, wantFlags := make(map[string]string), []string{}
		for _, r := range said {
			if f := set[r.what]; f != nil {
				f(&e)
			}
			if name, value, ok := strings.Cut(r.field, " "); ok {
				wantFields[name] = value
			} else if r.field != "" {
				wantFields[r.field] = "true"
			}
			if r.flag != "" {
				wantFlags = append(wantFlags, strings.TrimPrefix(r.flag, "/"))
			}
		}
		raw, err := json.Marshal(host(e).HealthStatus)
		if err != nil {
			t.Fatal(err)
		}
		var shown map[string]any
		if err := json.Unmarshal(raw, &shown); err != nil {
			t.Fatal(err)
		}
		fields := make(map[string]string)
		for k, v := range shown {
			fields[k] = fmt.Sprint(v)
		}
		flags := strings.Split(strings.TrimPrefix(healthFlags(e), "/"), "/")
		if len(wantFlags) == 0 {
			wantFlags = []string{"healthy"}
		}
		if !maps.Equal(fields, wantFields) || !slices.Equal(slices.Sorted(slices.Values(flags)), slices.Sorted(slices.Values(wantFlags))) {
			t.Errorf("%v:\nshown are %v and %v, want %v and %v", said, fields, flags, wantFields, wantFlags)
		}
	}
	try(nil)
	if n != 864 {
		t.Errorf("there were %d combinations", n)
	}
}
