package admin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"text/tabwriter"
	"unicode"

	"gatehouse.internal/cmd/agent/internal/node"
	"gatehouse.internal/lbcore"
)

// explanationJSON is how a connection gets its endpoint.
type explanationJSON struct {
	Cluster  string `json:"cluster"`
	Selector string `json:"selector"`
	Policy   string `json:"policy"`
	// Generation is the selector's, Newest that of what discovery lists.
	Generation uint64 `json:"generation"`
	Newest     uint64 `json:"newest_generation"`
	// Key is missing where it has no say: then the hash is drawn.
	Key    string     `json:"key,omitempty"`
	XXHash string     `json:"xxhash64"`
	CRC    string     `json:"crc32,omitempty"`
	Keyed  bool       `json:"keyed"`
	Loads  []loadJSON `json:"loads"`
	// Priority and Distance are those that the key leads to, and Want what is looked
	// for there: healthy, degraded or anyone.
	Priority uint8  `json:"priority"`
	Distance uint8  `json:"distance"`
	Want     string `json:"want"`
	// Steps are the endpoints in the order in which the selection came to them.
	Steps []stepJSON `json:"steps"`
	// Others are endpoints that are not in Steps, and Weightless those that are not in
	// the selector.
	Others     int `json:"other_endpoints"`
	Weightless int `json:"weightless_endpoints"`
	// Aggregate is of a cluster that consists of others, and Selector, Policy and what
	// endpoints it has are those of the clusters in it.
	Aggregate *aggregateJSON `json:"aggregate,omitempty"`
}

// aggregateJSON says which of the clusters that one consists of takes a connection.
type aggregateJSON struct {
	Clusters []string    `json:"clusters"`
	Loads    []childJSON `json:"loads"`
	// Asked are these in order: the next one while those before have no candidate.
	Asked []explanationJSON `json:"asked"`
}

type stepJSON struct {
	// Order is the place among the candidates, from 1, or 0.
	Order    int          `json:"order"`
	Address  string       `json:"address"`
	Verdict  string       `json:"verdict"`
	State    node.State   `json:"state"`
	Why      string       `json:"why,omitempty"`
	Weight   uint32       `json:"weight"`
	Slow     *float64     `json:"slow_start_share,omitempty"`
	Adaptive float64      `json:"adaptive_weight,omitempty"`
	Active   int64        `json:"cx_active"`
	Priority uint8        `json:"priority"`
	Distance uint8        `json:"distance"`
	Locality localityJSON `json:"locality"`
	Walk     bool         `json:"by_policy"` // else from all that there are
	Site     *siteJSON    `json:"place,omitempty"`
}

// siteJSON is a point of a ring, or an entry of a table.
type siteJSON struct {
	Place uint64 `json:"number"`
	Of    uint64 `json:"of"`
	Hash  string `json:"hash"`
}

func explanation(key string, x node.Explanation) explanationJSON {
	out := explanationJSON{
		Cluster: x.Cluster, Selector: x.Selector, Policy: x.Policy, Generation: x.Generation, Newest: x.Newest,
		XXHash: fmt.Sprintf("%016x", x.Key.Hash), Keyed: x.Keyed, Loads: []loadJSON{},
		Priority: x.Priority, Distance: x.Distance, Want: x.Want, Steps: make([]stepJSON, 0, len(x.Steps)), Others: x.Others, Weightless: x.Weightless,
	}
	if x.Key.Set {
		out.Key, out.CRC = key, fmt.Sprintf("%08x", x.Key.CRC)
	}
	for _, l := range x.Loads {
		out.Loads = append(out.Loads, loadJSON(l))
	}
	if a := x.Aggregate; a != nil {
		out.Aggregate = &aggregateJSON{Clusters: a.Clusters, Loads: []childJSON{}, Asked: []explanationJSON{}}
		for _, l := range a.Loads {
			out.Aggregate.Loads = append(out.Aggregate.Loads, childJSON{l.Cluster, loadJSON(l.TierLoad)})
		}
		for _, part := range a.Asked {
			out.Aggregate.Asked = append(out.Aggregate.Asked, explanation(key, part))
		}
	}
	for i, s := range x.Steps {
		e := &x.Endpoints[i]
		step := stepJSON{
			Order: s.Order, Address: e.Addr.String(), Verdict: s.Verdict.String(), State: e.State, Why: e.Why, Weight: s.Weight,
			Adaptive: e.AdaptiveWeight, Active: e.Active, Priority: s.Priority, Distance: s.Distance, Locality: localityJSON(e.Locality), Walk: s.Walk,
		}
		if e.SlowStart < 1 {
			step.Slow = &e.SlowStart
		}
		if s.Site.Of > 0 {
			width := 16
			if s.Site.Hash>>32 == 0 {
				width = 8
			}
			step.Site = &siteJSON{s.Site.Place, s.Site.Of, fmt.Sprintf("%0*x", width, s.Site.Hash)}
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// verdictWords says why an endpoint is no candidate, where it is ready.
var verdictWords = map[lbcore.Verdict]string{
	lbcore.VerdictTaken:       "it is acceptable",
	lbcore.VerdictLeastLoaded: "all are above the bound on their load, and it is the least so",
	lbcore.VerdictNotReady:    "it is not ready",
	lbcore.VerdictDegraded:    "it is degraded, and others come first",
	lbcore.VerdictNotDegraded: "this part of the load goes to degraded endpoints first",
	lbcore.VerdictSlowStart:   "it starts slowly, and the lot fell on somebody else",
	lbcore.VerdictOverloaded:  "it is above the bound on its load",
}

// writeExplanation writes a few lines and a table, or several for a cluster that
// consists of others.
func writeExplanation(w io.Writer, x explanationJSON, from node.Explanation) {
	line := liner(w)
	if a := x.Aggregate; a != nil {
		line("cluster %q, which consists of %q", x.Cluster, a.Clusters)
		writeKey(w, x)
		if len(a.Asked) == 0 {
			line("there are no endpoints: connections are reset")
			return
		}
		for _, l := range a.Loads {
			here := ""
			if first := a.Asked[0]; l.Cluster == first.Cluster && l.Priority == first.Priority && l.Distance == first.Distance {
				here = "chosen"
			}
			writeLoad(w, fmt.Sprintf("cluster %q, ", l.Cluster), l.loadJSON, here)
		}
		for i, part := range a.Asked {
			if i > 0 {
				line("it has no candidate, so the next one is asked")
			}
			line("")
			line("cluster %q, selector %q (%s), generation %d", part.Cluster, part.Selector, part.Policy, part.Generation)
			writeSteps(w, part, from.Aggregate.Asked[i].Steps)
		}
		return
	}
	line("cluster %q, selector %q (%s), generation %d", x.Cluster, x.Selector, x.Policy, x.Generation)
	writeKey(w, x)
	for _, l := range x.Loads {
		here := ""
		if l.Priority == x.Priority && l.Distance == x.Distance {
			here = "chosen: looks for " + x.Want + " ones"
		}
		writeLoad(w, "", l, here)
	}
	writeSteps(w, x, from.Steps)
}

// liner returns what writes a line.
func liner(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { io.WriteString(w, oneLine(fmt.Sprintf(format, args...))+"\n") }
}

// writeKey says what the key leads by, or that it has no say.
func writeKey(w io.Writer, x explanationJSON) {
	line := liner(w)
	switch {
	case x.CRC != "":
		line("key %q: xxhash64 %s, crc32 %s", x.Key, x.XXHash, x.CRC)
	case x.Keyed:
		line("no key: this hash is drawn, and the next connection's is another: %s", x.XXHash)
	case x.Aggregate != nil:
		line("no selector has use for a key: this is how the next connection may go")
	default:
		line("%s has no use for a key: this is how the next connection may go", x.Policy)
	}
}

// writeLoad says how much of the load goes to a priority, and that it is here.
func writeLoad(w io.Writer, of string, l loadJSON, here string) {
	panics := ""
	if l.Panic {
		panics = ", in panic"
	}
	if here != "" {
		here = ", " + here
	}
	liner(w)("%spriority %d, distance %d: endpoints %d, load %d%%, of degraded ones %d%%%s%s", of, l.Priority, l.Distance, l.Endpoints, l.Healthy, l.Degraded, panics, here)
}

// writeSteps writes the endpoints that a selection came to.
func writeSteps(w io.Writer, x explanationJSON, steps []lbcore.Step) {
	line := liner(w)
	if x.Newest > x.Generation {
		line("generation %d is known, and its selector is not built yet", x.Newest)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ORDER\tENDPOINT\tVERDICT\tWEIGHT\tPRIORITY\tLOCALITY\tPLACE\tHASH\tWHY")
	for i, s := range x.Steps {
		order, place, hash := "-", "-", "-"
		if s.Order > 0 {
			order = fmt.Sprint(s.Order)
		}
		switch {
		case s.Site != nil:
			place, hash = fmt.Sprintf("%d/%d", s.Site.Place, s.Site.Of), s.Site.Hash
		case !s.Walk:
			place = "any"
		}
		why := verdictWords[steps[i].Verdict]
		if steps[i].Verdict == lbcore.VerdictNotReady && s.Why != "" {
			why = s.Why
		}
		locality := strings.Trim(s.Locality.Region+"/"+s.Locality.Zone+"/"+s.Locality.SubZone, "/")
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", order, oneLine(s.Address), s.Verdict, s.Weight, s.Priority, orNone(oneLine(locality)), place, hash, oneLine(why))
	}
	tw.Flush()
	if len(x.Steps) == 0 {
		line("there are no endpoints: connections are reset")
	}
	if x.Others > 0 {
		line("endpoints that the selection did not come to: %d", x.Others)
	}
	if x.Weightless > 0 {
		line("endpoints that are left out, since their weight or that of their locality is 0: %d", x.Weightless)
	}
}

// oneLine keeps on a line, and from a terminal what that obeys, what a peer may have
// written.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(s, "\n", "; "))
}

// explain answers how a connection with a key gets its endpoint. Addresses are taken
// in any form, since what is hashed is their shortest.
func explain(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("cluster") == "" {
			http.Error(w, "want ?cluster=NAME, and if need be selector=NAME and key=TEXT", http.StatusBadRequest)
			return
		}
		format := query.Get("format")
		if format != "" && format != "text" && format != "json" {
			http.Error(w, fmt.Sprintf("format %q: want text or json", format), http.StatusBadRequest)
			return
		}
		var k lbcore.Key
		key := query.Get("key")
		if query.Has("key") {
			if ip, err := netip.ParseAddr(key); err == nil {
				key = ip.Unmap().WithZone("").String()
			} else if ap, err := netip.ParseAddrPort(key); err == nil {
				key = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()).String()
			}
			k = lbcore.StringKey(key)
		}
		x, err := cfg.Explain(query.Get("cluster"), query.Get("selector"), k)
		switch {
		case errors.Is(err, node.ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case format == "json":
			writeJSON(w, explanation(key, x))
		default:
			plain(w)
			writeExplanation(w, explanation(key, x), x)
		}
	}
}
