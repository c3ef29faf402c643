package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/hashicorp/hcl/v2"

	"gatehouse.internal/healthsvc"
	"gatehouse.internal/internal/hcltext"
	"gatehouse.internal/internal/logfile"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/lbcore/maglev"
	"gatehouse.internal/lbcore/ringhash"
)

// where returns the place of an argument of the block p, of the first that was
// set; else the beginning of p, or of what p is in.
func (d *decoder) where(p path, names ...string) hcl.Range {
	for _, n := range names {
		if rng, ok := d.at[p.sub(n)]; ok {
			return rng
		}
	}
	for ; p != ""; p = p.parent() {
		if rng, ok := d.at[p]; ok {
			return rng
		}
	}
	return hcl.Range{Filename: "configuration"}
}

// good reports whether no mistake was found in any of these arguments of p, nor
// one in p that could be meant for them.
func (d *decoder) good(p path, names ...string) bool {
	return !d.bad[p] && !slices.ContainsFunc(names, func(n string) bool { return d.bad[p.sub(n)] })
}

// check finds the mistakes that lie between values, as far as those are good.
func (d *decoder) check(cfg *Config) {
	if p := path("node"); cfg.Node.ID == "" && d.good(p, "id") {
		d.mistake(p, d.where(p, "id"), "id of node is empty, and the host name is not known", `set it: node { id = "..." }`)
	}
	if cfg.DrainSpread > cfg.DrainTimeout/2 && d.isSet("", "drain_spread") && d.good("", "drain_spread", "drain_timeout") {
		d.mistake("", d.where("", "drain_spread"), fmt.Sprintf("drain_spread (%s) > half of drain_timeout (%s)", cfg.DrainSpread, cfg.DrainTimeout),
			"it is the last part of that: set it to at most half of it, so that connections may go on for as long")
	}
	if s := cfg.Takeover.Socket; s != "" && d.good("takeover", "socket") && d.isSet("takeover", "socket") {
		if !filepath.IsAbs(s) || len(s) > maxSocketPath {
			d.mistake("takeover", d.where("takeover", "socket"), fmt.Sprintf("socket: want an absolute path of at most %d bytes", maxSocketPath),
				"name a file in a directory of the agent's own, as /run/gatehouse/takeover.sock")
		}
	}
	if d.opts.StateDir != nil && cfg.StateDir != "" && d.good("", "state_dir") {
		if err := d.opts.StateDir(cfg.StateDir); err != nil {
			d.mistake("", d.where("", "state_dir"), "state_dir: "+err.Error(), "name a directory of the agent's own, with mode 0700, as /var/lib/gatehouse")
		}
	}
	d.checkAdmin(&cfg.Admin)
	d.checkTelemetry(cfg.Telemetry)
	d.checkXDS(cfg.XDS)
	d.checkConsul(cfg)
	if d.opts.DNS != nil {
		d.fields("dns", d.opts.DNS(cfg.DNS))
	}

	clusters := map[string]*Cluster{}
	var names []string
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		clusters[c.Name] = c
		names = append(names, c.Name)
		d.checkCluster(cfg, c)
	}
	for i := range cfg.Listeners {
		d.checkReference(cfg, &cfg.Listeners[i], clusters, names)
		d.checkDownstreamTLS(&cfg.Listeners[i])
		d.checkListenerConnect(&cfg.Listeners[i])
	}
	d.checkAddresses(cfg)
}

func (d *decoder) checkTelemetry(t Telemetry) {
	p := path("telemetry")
	if len(t.DogstatsdTags) > 0 && t.DogstatsdAddr == "" && d.good(p, "dogstatsd_addr") {
		d.mistake(p, d.where(p, "dogstatsd_tags"), "dogstatsd_tags without dogstatsd_addr", "name the server too")
	}
	for _, s := range []struct{ name, address string }{
		{"statsd_address", t.StatsdAddress}, {"statsite_address", t.StatsiteAddress}, {"dogstatsd_addr", t.DogstatsdAddr},
	} {
		if s.address == "" || s.name == "dogstatsd_addr" && strings.HasPrefix(s.address, "unix:///") {
			continue
		}
		host, port, err := net.SplitHostPort(s.address)
		if n, nerr := strconv.ParseUint(port, 10, 16); err != nil || nerr != nil || n == 0 || host == "" {
			d.mistake(p, d.where(p, s.name), fmt.Sprintf("%s: %q is no host:port", s.name, s.address), "as in 127.0.0.1:8125")
		}
	}
	for _, f := range t.PrefixFilter {
		if len(f) < 2 || f[0] != '+' && f[0] != '-' {
			d.mistake(p, d.where(p, "prefix_filter"), fmt.Sprintf("prefix_filter: %q does not say if there is such a metric", f), `as in "+gatehouse.cluster" or "-gatehouse.selector"`)
		}
	}
	word := func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	if m := t.MetricsPrefix; m == "" || m[0] >= '0' && m[0] <= '9' || strings.ContainsFunc(m, word) {
		d.mistake(p, d.where(p, "metrics_prefix"), fmt.Sprintf("metrics_prefix can't be %q", m), "letters, digits and underscores, no digit first")
	}
}

// checkSearched warns of a name that may be another one's: search domains are of
// the host, and one who can make names in them decides where connections go.
func (d *decoder) checkSearched(cfg *Config, at path, x Discovery) {
	if d.opts.Searched == nil || !d.good(at, "name") || !d.good("dns", "search", "ndots", "resolv_conf") {
		return
	}
	if names := d.opts.Searched(cfg.DNS, x); len(names) > 1 {
		d.warn(d.where(at, "name"), fmt.Sprintf("name %q has no dot at its end: %d names are tried, first %q, then %q", x.HostName, len(names), names[0], names[1]),
			fmt.Sprintf("write %q if that is the whole name", x.HostName+"."))
	}
}

func (d *decoder) checkCluster(cfg *Config, c *Cluster) {
	p := path("cluster").sub(c.Name)
	if len(c.Discovery) == 0 && d.good(p, "discovery") && !d.incomplete {
		d.mistake(p, d.where(p), fmt.Sprintf("no discovery in cluster %q", c.Name), `say where its endpoints come from: discovery "eds", "consul", "dns", "static" or "file"`)
	}
	for i, x := range c.Discovery {
		at := p.sub("discovery", strconv.Itoa(i))
		switch {
		case x.Kind == DiscoveryConsul && d.opts.Query != nil:
			d.fields(at, d.opts.Query(x))
		case x.Kind == DiscoveryDNS && d.opts.Name != nil && d.good(at):
			d.fields(at, d.opts.Name(x))
			d.checkSearched(cfg, at, x)
		case x.Kind == DiscoveryEDS && !cfg.XDS.Enabled() && d.good("xds", "bootstrap", "server_uri", "server") && !d.incomplete:
			d.mistake(at, d.where(at), "discovery \"eds\" without a control plane", "add an xds block with bootstrap, server_uri or a server")
		}
	}
	for i := range c.HealthChecks {
		d.checkHealthCheck(p.sub("health_check", strconv.Itoa(i)), &c.HealthChecks[i])
	}
	if c.OnAbsent == AbsentStabilize && len(c.HealthChecks) == 0 && d.good(p, "health_check", "on_absent") && !d.incomplete {
		d.mistake(p, d.where(p, "on_absent"), `on_absent "stabilize" without a health_check`, "add one: endpoints stay for as long as they pass it")
	}
	d.checkSpread(cfg, c)
	d.checkSlowStart(c)
	d.checkOutlier(c)
	d.checkClientTLS(p.sub("tls"), &c.TLS)
	d.checkConnect(c)
	d.checkSockets(c)
	if d.isSet(p, "close_after") && c.OnRemoval != EndCloseAfter && c.OnUnhealthy != EndCloseAfter && d.good(p, "close_after", "on_removal", "on_unhealthy") {
		d.mistake(p, d.where(p, "close_after"), `close_after has no effect: neither on_removal nor on_unhealthy is "close_after"`, `leave it out, or set one of them to "close_after"`)
	}
	if at := p.sub("proxy_protocol"); c.ProxyProtocol.Version == 1 && c.ProxyProtocol.UniqueID && d.good(at, "version", "unique_id") {
		d.mistake(at, d.where(at, "unique_id"), "unique_id is for version 2, and version 1 has no place for it", "leave it out, or set version to 2")
	}
	if at := p.sub("proxy_protocol"); len(c.ProxyProtocol.PassThroughTLVs) > 0 && d.good(at, "version", "pass_through_tlvs") {
		if c.ProxyProtocol.Version == 1 {
			d.mistake(at, d.where(at, "pass_through_tlvs"), "pass_through_tlvs is for version 2, and version 1 has no place for them", "leave it out, or set version to 2")
		} else if len(c.ProxyProtocol.PassThroughTLVs) > 1 && slices.Contains(c.ProxyProtocol.PassThroughTLVs, TLVsAll) {
			d.mistake(at, d.where(at, "pass_through_tlvs"), `pass_through_tlvs has "all" and others`, `["all"] says it all`)
		}
	}
	var adaptive *Selector // the first one
	for i := range c.Selectors {
		s := &c.Selectors[i]
		at := p.sub("selector", s.Name)
		if f := s.HashBalanceFactor; f > 0 && f < 100 {
			d.mistake(at, d.where(at, "hash_balance_factor"), fmt.Sprintf("hash_balance_factor is out of range: %d", f), "at least 100, or 0 for no bound")
		}
		switch {
		case !d.good(at, "policy"):
		case s.Policy == PolicyRingHash:
			d.checkRing(at, s)
			d.checkStorage(at, "minimum_ring_size", s.MinimumRingSize, ringhash.Config{MinimumSize: s.MinimumRingSize, MaximumSize: s.MaximumRingSize})
		case s.Policy == PolicyMaglev:
			table := maglev.Config{TableSize: s.TableSize}
			if err := table.Validate(); err != nil && d.good(at, "table_size") {
				d.mistake(at, d.where(at, "table_size"), err.Error(), "another number of slots, as the default, 65537")
			}
			d.checkStorage(at, "table_size", s.TableSize, table)
		case s.Policy == PolicyAdaptive && d.good(at, "latency_of"):
			if adaptive == nil {
				adaptive = s
			} else if s.LatencyOf != adaptive.LatencyOf {
				d.mistake(at, d.where(at, "latency_of"), fmt.Sprintf("latency_of is %q, and %q in selector %q", s.LatencyOf, adaptive.LatencyOf, adaptive.Name),
					"the adaptive selectors of a cluster share what is learnt: make it the same in all")
			}
		}
	}
}

// checkSpread finds what stands in the way of spreading the load of c.
func (d *decoder) checkSpread(cfg *Config, c *Cluster) {
	p := path("cluster").sub(c.Name)
	here := path("node").sub("locality")
	if c.PreferLocal && cfg.Node.Locality.Region == "" && cfg.Node.Locality.Zone == "" && !d.bad["node"] && d.good(here, "region", "zone") && !d.incomplete {
		d.mistake(p, d.where(p, "prefer_local"), "prefer_local without a locality of the node",
			"say where the node is: region, zone or both in the block locality of node")
	}
	if !c.LocalityWeighted {
		return
	}
	for _, x := range c.Discovery {
		if x.Kind == DiscoveryConsul || x.Kind == DiscoveryDNS {
			d.mistake(p, d.where(p, "locality_weighted"), fmt.Sprintf("locality_weighted with discovery %q, which has no weights of localities", x.Kind),
				"leave it out; prefer_local needs no weights")
			return
		}
	}
}

// checkSlowStart finds a slow start that no selector of c has.
func (d *decoder) checkSlowStart(c *Cluster) {
	p := path("cluster").sub(c.Name)
	at := p.sub("slow_start")
	if c.SlowStart.Window == 0 || !d.good(at) || !d.good(p, "selector") || d.incomplete {
		return
	}
	for _, s := range c.Selectors {
		if at := p.sub("selector", s.Name); !d.good(at, "policy") || s.Policy != PolicyRingHash && s.Policy != PolicyMaglev {
			return
		}
	}
	d.mistake(at, d.where(at, "window"), "slow_start has no effect with ring_hash and maglev, and the cluster has no other selector",
		"leave it out, or add a selector of another policy")
}

// one is the input of the smallest selector there is.
var one = lbcore.Input{
	Members:   make([]*lbcore.Member, 1),
	Endpoints: []*lbcore.Endpoint{{Addr: lbcore.IPAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)), Weight: 1}},
	Shares:    []float64{1},
}

// checkStorage finds a selector that is too large for the gate with a single
// endpoint already, because of its argument size. More endpoints may take more,
// which only the gate can find.
func (d *decoder) checkStorage(p path, size string, value uint64, b lbcore.Builder) {
	most := d.cfg.Gate.MaxStorage
	if !d.good(p, size, "maximum_ring_size") || !d.good("gate", "max_storage") {
		return
	}
	u64, u32, err := b.Shape(one)
	bytes := 8 * (u64 + (u32+1)/2)
	if err != nil || bytes <= most {
		return
	}
	hint := "make it smaller, or max_storage larger"
	if limit, ok := d.at[path("gate").sub("max_storage")]; ok && limit.Start.Line > 0 {
		hint += "; that is at " + d.position(limit)
	}
	d.mistake(p, d.where(p, size), fmt.Sprintf("%s (%d) takes %d bytes or more, and max_storage of gate allows %d", size, value, bytes, most), hint)
}

func (d *decoder) checkRing(p path, s *Selector) {
	switch {
	case s.HashFunction == HashKetama:
		if d.isSet(p, "minimum_ring_size") && d.good(p, "minimum_ring_size") {
			d.mistake(p, d.where(p, "minimum_ring_size"), `minimum_ring_size has no effect with hash_function "ketama"`,
				"leave it out: such a ring has 160 points for each unit of weight")
		}
	case s.MinimumRingSize > s.MaximumRingSize && d.good(p, "minimum_ring_size", "maximum_ring_size"):
		d.mistake(p, d.where(p, "minimum_ring_size", "maximum_ring_size"), fmt.Sprintf("minimum_ring_size (%d) > maximum_ring_size (%d)",
			s.MinimumRingSize, s.MaximumRingSize), "make the ring's least size at most its largest")
	}
}

func (d *decoder) checkHealthCheck(p path, h *HealthCheck) {
	if h.Timeout > h.Interval && d.good(p, "timeout", "interval") {
		d.mistake(p, d.where(p, "timeout", "interval"), fmt.Sprintf("timeout (%s) > interval (%s)", h.Timeout, h.Interval), "set timeout to at most the interval")
	}
	if h.NoTrafficHealthyInterval > 0 && h.NoTrafficInterval == 0 && d.good(p, "no_traffic_interval", "no_traffic_healthy_interval") {
		d.mistake(p, d.where(p, "no_traffic_healthy_interval"), "no_traffic_healthy_interval has no effect without no_traffic_interval", "set both, or none")
	}
	if err := h.Probe(h.HostName(), healthsvc.Transport{}).Validate(); err != nil {
		// In the words of healthsvc: `path "x": must begin with a slash`.
		name, _, _ := strings.Cut(err.Error(), " ")
		msg, hint, _ := strings.Cut(err.Error(), ": ")
		if name == "header" {
			name = "headers"
		}
		d.mistake(p, d.where(p, strings.TrimSuffix(name, ":")), msg+" can't be used", hint)
	}
	d.checkClientTLS(p.sub("tls"), h.TLS.upstream())
}

func (d *decoder) checkReference(cfg *Config, l *Listener, clusters map[string]*Cluster, names []string) {
	p := path("listener").sub(l.Name)
	d.checkSocket(l)
	if at := p.sub("proxy_protocol"); d.isSet(at, "accept_from") && len(l.ProxyProtocol.AcceptFrom) == 0 && d.good(at, "accept_from") {
		d.mistake(at, d.where(at, "accept_from"), "accept_from is empty", "name the addresses of the proxies, or leave proxy_protocol out")
	}
	if on, isTLV := strings.CutPrefix(l.HashOn, HashOnProxyTLV); isTLV && d.good(p, "hash_on") {
		_, block := d.at[p.sub("proxy_protocol")]
		switch t, _ := ParseByte(on); {
		case !block && !d.incomplete:
			d.mistake(p, d.where(p, "hash_on"), "hash_on proxy_tlv without proxy_protocol, in which TLVs come", "add a block proxy_protocol, or choose by something else")
		case t == 0x03 || t == 0x04:
			d.mistake(p, d.where(p, "hash_on"), fmt.Sprintf("hash_on can't be %q: CRC32C and NOOP say nothing of a client", l.HashOn), "name another TLV, as proxy_tlv:0x02, the server name")
		}
	}
	if l.OriginalDst && l.Address.Path() != "" && d.good(p, "address", "original_dst") {
		d.mistake(p, d.where(p, "original_dst"), "original_dst has no effect on a unix socket", "leave it out, or listen on an IP address")
	}
	if at := p.sub("tls_inspector"); d.isSet(at, "timeout", "max_pending") && d.good(p, "hash_on") {
		switch rng := d.where(at, "timeout", "max_pending"); {
		case l.HashOn != HashOnSNI:
			d.mistake(at, rng, `tls_inspector has no effect: hash_on is not "sni"`, `leave it out, or set hash_on to "sni"`)
		case l.TLS.Enabled || l.Connect.Enabled:
			d.mistake(at, rng, "tls_inspector has no effect: the listener ends TLS, and knows the server name by the handshake", "leave it out; handshake_timeout and max_handshakes of tls, or of connect, bound that")
		}
	}
	if l.MaxConnectionDurationJitter > 0 && l.MaxConnectionDuration == 0 && d.good(p, "max_connection_duration", "max_connection_duration_jitter_percentage") {
		d.mistake(p, d.where(p, "max_connection_duration_jitter_percentage"), "max_connection_duration_jitter_percentage has no effect without max_connection_duration",
			"leave it out, or set max_connection_duration")
	}
	d.checkWeights(p, l)
	for i, a := range l.AccessLogs {
		d.checkAccessLog(p.sub("access_log", strconv.Itoa(i)), a)
	}
	if d.bad[p.sub("selector")] || d.incomplete {
		return
	}
	if l.Cluster != "" {
		d.checkTarget(cfg, p, d.where(p, "cluster"), l.Cluster, l.Selector, clusters, names)
	}
	for _, w := range l.WeightedClusters {
		d.checkTarget(cfg, p, d.where(p.sub("weighted_cluster", w.Name)), w.Name, l.Selector, clusters, names)
	}
}

// checkWeights finds a listener with no cluster, or too much of them.
func (d *decoder) checkWeights(p path, l *Listener) {
	sum := uint64(0)
	for _, w := range l.WeightedClusters {
		sum += uint64(w.Weight)
	}
	switch {
	case d.bad[p.sub("weighted_cluster")] || !d.good(p, "cluster"):
	case l.Cluster == "" && len(l.WeightedClusters) == 0:
		if !d.incomplete {
			d.mistake(p, d.where(p), "no cluster in listener", "it is required, or several of weighted_cluster in its place")
		}
	case l.Cluster != "" && len(l.WeightedClusters) > 0:
		d.mistake(p, d.where(p, "cluster"), "cluster and weighted_cluster exclude each other", fmt.Sprintf("leave cluster out; with weighted_cluster %q it takes a share", l.Cluster))
	case sum > math.MaxUint32:
		d.mistake(p, d.where(p.sub("weighted_cluster", l.WeightedClusters[0].Name)), fmt.Sprintf("the weights of all weighted_cluster are %d together", sum), fmt.Sprintf("at most %d", uint32(math.MaxUint32)))
	}
}

// checkTarget finds that the cluster name, named by p at rng, does not exist, or has
// no such selector.
func (d *decoder) checkTarget(cfg *Config, p path, rng hcl.Range, name, selector string, clusters map[string]*Cluster, names []string) {
	c, ok := clusters[name]
	switch {
	case !ok && !cfg.XDS.Clusters:
		hint := "define it, or set clusters in xds to take it from the control plane"
		if near := hcltext.Nearest(name, names); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		d.mistake(p, rng, fmt.Sprintf("there is no cluster %q", name), hint)
	case !ok && selector != "" && selector != DefaultSelector:
		d.mistake(p, d.where(p, "selector"), fmt.Sprintf("there is no selector %q: cluster %q comes from the control plane", selector, name),
			"leave selector out, or define the cluster")
	case ok && selector != "" && d.good(path("cluster").sub(c.Name), "selector"):
		var selectors []string
		for _, s := range c.Selectors {
			selectors = append(selectors, s.Name)
		}
		if !slices.Contains(selectors, selector) {
			d.mistake(p, d.where(p, "selector"), fmt.Sprintf("there is no selector %q in cluster %q", selector, c.Name), hcltext.Suggest(selector, selectors))
		}
	}
}

func (d *decoder) checkAccessLog(p path, a AccessLog) {
	if a.Path != logfile.Stdout && a.Path != logfile.Stderr && !filepath.IsAbs(a.Path) && d.good(p, "path") {
		d.mistake(p, d.where(p, "path"), fmt.Sprintf("path: %q is no log", a.Path), "stdout, stderr, or an absolute path")
	} else if d.opts.LogFiles && d.good(p, "path") {
		d.checkLogFile(p, a.Path)
	}
	if d.opts.AccessLog == nil || !d.good(p, "format") {
		return
	}
	unknown, err := d.opts.AccessLog(a.Format)
	if err != nil {
		d.mistake(p, d.where(p, "format"), "format: "+err.Error(), "json, text, or a text with Envoy's operators in percent signs")
	}
	for _, name := range unknown {
		d.warn(d.where(p, "format"), fmt.Sprintf("format: %%%s%% is not known for connections", name), `it prints "-"`)
	}
}

// checkLogFile finds that there can't be a file at the path of a log. What can't
// be looked at is left to whoever opens it.
func (d *decoder) checkLogFile(p path, file string) {
	if file == logfile.Stdout || file == logfile.Stderr {
		return
	}
	if fi, err := os.Stat(file); err == nil && fi.IsDir() {
		d.mistake(p, d.where(p, "path"), fmt.Sprintf("path: %q is a directory", file), "name a file in it")
	}
	dir := filepath.Dir(file)
	if fi, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !fi.IsDir() {
		d.mistake(p, d.where(p, "path"), fmt.Sprintf("path: there is no directory %q", dir), "make it, or name another path")
	}
}

// checkAddresses finds what can't listen at the same time.
func (d *decoder) checkAddresses(cfg *Config) {
	type user struct {
		addr lbcore.Addr
		name string
		at   path
	}
	type group struct { // only within one can addresses overlap
		port   uint16
		socket string
	}
	used := map[group][]user{}
	take := func(name string, addr lbcore.Addr, at path) {
		g := group{addr.AddrPort().Port(), addr.Path()}
		if g == (group{}) || d.bad[at.sub("address")] { // port 0: the kernel finds one that is free
			return
		}
		for _, u := range used[g] {
			if overlap(u.addr, addr) {
				hint := "give one of them another address"
				if first := d.where(u.at, "address"); first.Start.Line > 0 {
					hint += "; its address is at " + d.position(first)
				}
				d.mistake(at, d.where(at, "address"), fmt.Sprintf("%s is taken by %s (%s)", addr, u.name, u.addr), hint)
				return
			}
		}
		used[g] = append(used[g], user{addr, name, at})
	}
	take("admin", cfg.Admin.Address, "admin")
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		take(fmt.Sprintf("listener %q", l.Name), l.Address, path("listener").sub(l.Name))
	}
}

// overlap reports whether one socket of the same port or path keeps the other
// from being opened: [::] takes all addresses, 0.0.0.0 all of IPv4.
func overlap(a, b lbcore.Addr) bool {
	x, y := a.AddrPort().Addr(), b.AddrPort().Addr()
	all := func(x, y netip.Addr) bool { return x.IsUnspecified() && (x.Is6() || y.Is4()) }
	return a == b || all(x, y) || all(y, x)
}
