package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const monitoringFiles = "../deploy/monitoring"

// The alerts are rules that Prometheus takes, and its own tests of them pass: no alert
// where all is well, and each where it is not.
func TestAlertRules(t *testing.T) {
	promtool := tool(t, "promtool", "prometheus")
	output(t, promtool, "check", "rules", filepath.Join(monitoringFiles, "gatehouse.rules.yml"))
	output(t, promtool, "test", "rules", filepath.Join(monitoringFiles, "gatehouse.rules_test.yml"))
	rules := read(t, "gatehouse.rules.yml")
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	fired := regexp.MustCompile(`exp_samples: \[\{labels: '\{\}', value: (\d+)\}\]`).FindStringSubmatch(read(t, "gatehouse.rules_test.yml"))
	if fired == nil || fired[1] != strconv.Itoa(len(names)) {
		t.Errorf("the tests of the rules fire %q alerts, and there are %d", fired, len(names))
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoringFiles, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What an expression is made of besides the names of metrics.
var (
	exprText   = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^\]]*\]`)                                  // strings, matchers, ranges
	exprLabels = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`) // lists of labels
	exprName   = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
	exprWords  = []string{"and", "or", "unless", "bool"}
)

// metricsOf returns the metrics that an expression names.
func metricsOf(expr string) (names []string) {
	expr = exprLabels.ReplaceAllString(exprText.ReplaceAllString(expr, ""), "")
	for _, name := range exprName.FindAllString(expr, -1) {
		if strings.HasSuffix(name, "(") { // a function
			continue
		}
		if name = strings.TrimSpace(name); !slices.Contains(exprWords, name) && name != "" {
			names = append(names, name)
		}
	}
	return names
}

func TestMetricsOf(t *testing.T) {
	const expr = `sum by (a, b) (rate(gatehouse_x{l=~"not_this"}[5m])) / on (c) gatehouse_y > 0.5 and gatehouse_z == 0 or vector(0)`
	if got, want := metricsOf(expr), []string{"gatehouse_x", "gatehouse_y", "gatehouse_z"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each metric that the alerts and the dashboard name is one that the agent has, and each
// label that they choose by is one that it has.
func TestMonitoredMetrics(t *testing.T) {
	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string][]string) // labels, by metric
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(docs), -1) {
		known[m[1]] = append(strings.Split(m[3], ", "), "instance")
		if m[2] == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				known[m[1]+part] = append(slices.Clone(known[m[1]]), "le")
			}
			delete(known, m[1])
		}
	}
	known["up"] = []string{"job", "instance"} // Prometheus's own
	check := func(where, expr string) {
		t.Helper()
		names := metricsOf(expr)
		if len(names) == 0 {
			t.Errorf("%s: %s names no metric", where, expr)
		}
		for _, name := range names {
			if known[name] == nil {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, m := range regexp.MustCompile(`(\w+)\{([^}]*)\}`).FindAllStringSubmatch(expr, -1) {
			for _, l := range regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(known[m[1]], l[1]) {
					t.Errorf("%s: %s has no label %s", where, m[1], l[1])
				}
			}
		}
	}
	exprs := regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(read(t, "gatehouse.rules.yml"), -1)
	if len(exprs) < 20 {
		t.Errorf("%d expressions of alerts were found", len(exprs))
	}
	for _, m := range exprs {
		check("gatehouse.rules.yml", m[1])
	}

	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Annotations struct{ List []struct{ Expr string } }
	}
	if err := json.Unmarshal([]byte(read(t, "gatehouse.dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	variables := []string{"__rate_interval"}
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			check("variable "+v.Name, strings.Replace(v.Definition, ", "+v.Name+")", ")", 1))
		}
	}
	ids := make(map[int]bool)
	for i, p := range board.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, at %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		for _, o := range board.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q lie over each other", p.Title, o.Title)
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			check("panel "+p.Title, target.Expr)
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("panel %q: there is no variable %s", p.Title, v[1])
				}
			}
		}
	}
	for _, a := range board.Annotations.List {
		check("annotation", a.Expr)
	}
	if board.UID == "" || len(board.Panels) < 10 {
		t.Errorf("the dashboard has %d panels", len(board.Panels))
	}
}
