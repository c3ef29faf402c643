package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"gatehouse.internal/forwarder"
)

// topModel is the state of top. Update and View depend on nothing else.
type topModel struct {
	at    string // the agent's address
	every time.Duration
	ask   tea.Cmd

	last, now     topAnswer // the two newest answers that are good
	err           error     // why the newest is not
	endpoints     bool      // are shown, not clusters
	sort          [2]int    // the column, of clusters and of endpoints
	reverse       bool
	filter        string
	typing        bool // a filter
	paused        bool
	top           int // the first row that is shown
	width, height int
}

// topTick says that it is time to ask again.
type topTick struct{}

func newTopModel(at string, every time.Duration, ask tea.Cmd) topModel {
	return topModel{at: at, every: every, ask: ask, width: 80, height: 24}
}

func (m topModel) tick() tea.Cmd {
	return tea.Tick(m.every, func(time.Time) tea.Msg { return topTick{} })
}

// Init implements tea.Model.
func (m topModel) Init() tea.Cmd { return m.tick() }

// Update implements tea.Model.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case topTick: // the answer has the next one begin
		if m.paused {
			return m, m.tick()
		}
		return m, m.ask
	case topAnswer:
		first := m.now.at.IsZero()
		switch {
		case m.paused: // asked before it was
		case msg.err != nil:
			m.err = msg.err
		default:
			m.last, m.now, m.err = m.now, msg, nil
		}
		if first && msg.err == nil {
			return m, nil // Init begins
		}
		return m, m.tick()
	case tea.KeyMsg:
		return m.key(msg)
	}
	m.top = m.bounded(m.top)
	return m, nil
}

func (m topModel) key(k tea.KeyMsg) (tea.Model, tea.Cmd) {
	if k.Type == tea.KeyCtrlC {
		return m, tea.Quit
	}
	if m.typing {
		switch k.Type {
		case tea.KeyEnter:
			m.typing = false
		case tea.KeyEsc:
			m.typing, m.filter = false, ""
		case tea.KeyBackspace:
			if r := []rune(m.filter); len(r) > 0 {
				m.filter = string(r[:len(r)-1])
			}
		case tea.KeyRunes, tea.KeySpace:
			m.filter += string(k.Runes)
		}
		m.top = 0
		return m, nil
	}
	page := max(m.rows(), 1)
	switch k.String() {
	case "q":
		return m, tea.Quit
	case "tab", "e":
		m.endpoints, m.top = !m.endpoints, 0
	case "s":
		at := &m.sort[m.which()]
		*at, m.reverse = (*at+1)%len(topTitles[m.which()]), false
	case "r":
		m.reverse = !m.reverse
	case "/":
		m.typing = true
	case "esc":
		m.filter, m.top = "", 0
	case "p", " ":
		m.paused = !m.paused
	case "up", "k":
		m.top--
	case "down", "j":
		m.top++
	case "pgup":
		m.top -= page
	case "pgdown":
		m.top += page
	case "home":
		m.top = 0
	}
	m.top = m.bounded(m.top)
	return m, nil
}

func (m topModel) which() int {
	if m.endpoints {
		return 1
	}
	return 0
}

// rows is how many rows of the table fit.
func (m topModel) rows() int { return m.height - 4 }

func (m topModel) bounded(top int) int { return max(0, min(top, len(m.table())-m.rows())) }

// topTitles are the columns of clusters, and of endpoints.
var topTitles = [2][]string{
	{"CLUSTER", "CONN/S", "FAIL/S", "OPEN", "READY", "P50", "P99", "REBUILDS", "SOURCE", "AGE"},
	{"CLUSTER", "ENDPOINT", "CONN/S", "FAIL/S", "OPEN", "LATENCY", "HEALTH", "WHY"},
}

// topCell is a text, or a number that is shown so; numbers are sorted with the largest
// first.
type topCell struct {
	text   string
	number bool
	by     float64
}

func text(s string) topCell { return topCell{text: cmp.Or(onOneLine(s), "-")} }

func number(n float64, format string, args ...any) topCell {
	return topCell{fmt.Sprintf(format, args...), true, n}
}

// latency is a time in seconds; 0 is none.
func latency(seconds float64) topCell {
	if seconds == 0 {
		return number(0, "-")
	}
	return number(seconds, "%s", millis(seconds))
}

// latency returns what an adaptive selector has learnt in seconds, 0 if nothing.
func (h *topHost) latency() float64 {
	if h.More.Adaptive == 0 || h.stat("cx_total") == 0 { // it would be what was begun with
		return 0
	}
	return 1 << 24 / h.More.Adaptive / 1e6
}

// table returns the rows of what is shown, filtered and sorted.
func (m topModel) table() (rows [][]topCell) {
	seconds := m.now.at.Sub(m.last.at).Seconds()
	if m.last.at.IsZero() {
		seconds = 0
	}
	rate := func(now, last uint64, known bool) topCell {
		if seconds <= 0 || !known || now < last { // it has come, or begun anew
			return number(0, "-")
		}
		n := float64(now-last) / seconds
		return number(n, "%.1f", n)
	}
	before := make(map[string]*topCluster, len(m.last.state.Clusters))
	for i := range m.last.state.Clusters {
		before[m.last.state.Clusters[i].Name] = &m.last.state.Clusters[i]
	}
	add := func(name string, row []topCell) {
		if strings.Contains(strings.ToLower(name), strings.ToLower(m.filter)) {
			rows = append(rows, row)
		}
	}
	for i := range m.now.state.Clusters {
		c := &m.now.state.Clusters[i]
		g := &c.More
		was, known := before[c.Name], true
		if was == nil {
			was, known = new(topCluster), false
		}
		if !m.endpoints {
			var took forwarder.LatencyCounts // the connects since the last answer
			if known && seconds > 0 {
				took = c.connects().Since(new(was.connects()))
			}
			rebuilds, failed := uint64(0), uint64(0)
			for _, s := range g.Selectors {
				rebuilds, failed = rebuilds+s.Rebuilds, failed+s.Failed
			}
			built := fmt.Sprint(rebuilds)
			if failed > 0 {
				built += fmt.Sprintf(" (%d failed)", failed)
			}
			var kinds []string
			for _, b := range g.Source.Blocks {
				kinds = append(kinds, b.Kind)
			}
			source, age := strings.Join(append(kinds, g.Source.State), " "), number(0, "-")
			if g.Unsupported != "" {
				source = "unsupported: " + g.Unsupported
			}
			if at := g.Source.Confirmed; !at.IsZero() {
				s := m.now.at.Sub(at).Seconds()
				age = number(s, "%s", ago(s))
			}
			add(c.Name, []topCell{
				text(c.Name), rate(g.Total, was.More.Total, known), rate(g.Failed, was.More.Failed, known), number(float64(g.Active), "%d", g.Active),
				number(float64(g.Ready), "%d/%d", g.Ready, len(c.Hosts)), latency(took.Quantile(.5).Seconds()), latency(took.Quantile(.99).Seconds()), number(float64(rebuilds), "%s", built), text(source), age,
			})
			continue
		}
		hosts := make(map[string]*topHost, len(was.Hosts))
		for k := range was.Hosts {
			hosts[was.Hosts[k].addr()] = &was.Hosts[k]
		}
		for k := range c.Hosts {
			h := &c.Hosts[k]
			old, known := hosts[h.addr()], true
			if old == nil {
				old, known = new(topHost), false
			}
			add(c.Name+" "+h.addr(), []topCell{
				text(c.Name), text(h.addr()), rate(h.stat("cx_total"), old.stat("cx_total"), known),
				rate(h.stat("cx_connect_fail"), old.stat("cx_connect_fail"), known), number(float64(h.stat("cx_active")), "%d", h.stat("cx_active")),
				latency(h.latency()), text(h.More.State), text(h.More.Why),
			})
		}
	}
	by := m.sort[m.which()]
	slices.SortStableFunc(rows, func(a, b []topCell) int {
		x, y := a[by], b[by]
		order := cmp.Compare(y.by, x.by)
		if !x.number {
			order = strings.Compare(x.text, y.text)
		}
		if m.reverse {
			order = -order
		}
		return order
	})
	return rows
}

// View implements tea.Model.
func (m topModel) View() string {
	rows := m.table()
	titles := slices.Clone(topTitles[m.which()])
	mark := "▼" // what a number begins with
	if m.reverse {
		mark = "▲"
	}
	titles[m.sort[m.which()]] += mark
	widths := make([]int, len(titles))
	for i, t := range titles {
		widths[i] = len([]rune(t))
		for _, r := range rows {
			widths[i] = max(widths[i], len([]rune(r[i].text)))
		}
	}
	var b strings.Builder
	put := func(s string) {
		if r := []rune(s); len(r) > m.width {
			s = string(r[:max(m.width, 0)])
		}
		b.WriteString(strings.TrimRight(s, " ") + "\n")
	}
	line := func(cells []string) {
		var l strings.Builder
		for i, c := range cells {
			fmt.Fprintf(&l, "%-*s  ", widths[i], c)
		}
		put(l.String())
	}
	put(m.status(len(rows)))
	put("")
	line(titles)
	for _, r := range rows[min(m.top, len(rows)):min(m.top+max(m.rows(), 0), len(rows))] {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = c.text
		}
		line(cells)
	}
	switch {
	case m.typing:
		put("filter: " + m.filter + "█")
	default:
		put("tab endpoints/clusters  s sort  r reverse  / filter  p pause  q quit")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// status is the first line.
func (m topModel) status(rows int) string {
	ready, endpoints, what := 0, 0, "clusters"
	for _, c := range m.now.state.Clusters {
		ready, endpoints = ready+c.More.Ready, endpoints+len(c.Hosts)
	}
	if m.endpoints {
		what = "endpoints"
	}
	s := fmt.Sprintf("gatehouse at %s  %s  %d of %d endpoints ready  %d %s", m.at, m.now.at.UTC().Format(time.TimeOnly), ready, endpoints, rows, what)
	if m.filter != "" {
		s += fmt.Sprintf(" with %q", m.filter)
	}
	if m.paused {
		s += "  PAUSED"
	}
	if m.err != nil {
		s += "  OLD: " + onOneLine(m.err.Error())
	}
	return s
}
