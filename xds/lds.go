package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"gatehouse.internal/forwarder/filterchain"
	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/guard"
)

// The most that a listener can have: more is refused, as no program listens so.
const (
	mostAddresses = 64
	mostChains    = 8192
)

// listenerReader gathers what is found in a Listener.
type listenerReader struct {
	l           Listener
	unsupported []string
	proxies     bool // a chain ends in a tcp_proxy

	httpInspector string // its path, if there is one
}

func (r *listenerReader) refuse(format string, args ...any) {
	r.unsupported = append(r.unsupported, fmt.Sprintf(format, args...))
}

func (r *listenerReader) ignore(format string, args ...any) {
	r.l.Ignored = append(r.l.Ignored, fmt.Sprintf(format, args...))
}

// fields sorts the fields of m that are set by the table, and returns those that
// are refused.
func (r *listenerReader) fields(m proto.Message, path string, table map[string]use) (unsupported []string) {
	sortFields(m, table,
		func(name string) { r.l.Ignored = append(r.l.Ignored, path+name) },
		func(name string) { unsupported = append(unsupported, path+name) })
	slices.Sort(unsupported)
	return unsupported
}

// decodeListener reads an LDS resource. It is a core.Type's Decode. Beside an error it
// returns a *Listener with no more than the names of secrets, as decodeCluster does
// for endpoints.
func decodeListener(body []byte) (string, any, error) {
	var m listenerv3.Listener
	if err := guard.Unmarshal(body, &m); err != nil {
		return guard.String(body, 1), nil, fmt.Errorf("not a Listener: %w", err)
	}
	if m.GetName() == "" {
		return "", nil, fmt.Errorf("name: missing")
	}
	r := listenerReader{l: Listener{Name: m.GetName(), BindToPort: true, FiltersTimeout: DefaultListenerFiltersTimeout}}
	if m.GetApiListener() != nil { // clients of gRPC's, which has no use for the rest
		r.l.Unsupported = "api_listener"
		return r.l.Name, &r.l, nil
	}
	for _, read := range []func(*listenerv3.Listener) error{r.addresses, r.sockets, r.filters, r.chains} {
		if err := read(&m); err != nil {
			return r.l.Name, r.partial(), err
		}
	}
	logs, err := r.accessLogs(m.GetAccessLog(), "access_log")
	if err != nil {
		return r.l.Name, r.partial(), err
	}
	r.l.AccessLogs = logs
	r.unsupported = append(r.unsupported, r.fields(&m, "", listenerFields)...)
	slices.Sort(r.l.Ignored)
	slices.Sort(r.unsupported)
	r.l.Unsupported = core.Clip(strings.Join(r.unsupported, ", "))
	return r.l.Name, &r.l, nil
}

// partial is what of a listener that is refused is of use: the names of secrets that
// were found, if any were.
func (r *listenerReader) partial() any {
	if len(r.l.Secrets) == 0 {
		return nil
	}
	return &Listener{Name: r.l.Name, Secrets: r.l.Secrets}
}

// addresses reads where the listener listens.
func (r *listenerReader) addresses(m *listenerv3.Listener) error {
	if m.GetInternalListener() != nil {
		return nil // refused by the table
	}
	if n := len(m.GetAdditionalAddresses()); n > mostAddresses {
		return fmt.Errorf("additional_addresses: %d: want at most %d", n, mostAddresses)
	}
	if err := r.address(m.GetAddress(), "address"); err != nil {
		return err
	}
	for i, a := range m.GetAdditionalAddresses() {
		path := fmt.Sprintf("additional_addresses[%d].", i)
		if err := r.address(a.GetAddress(), path+"address"); err != nil {
			return err
		}
		r.unsupported = append(r.unsupported, r.fields(a, path, additionalAddressFields)...)
	}
	return nil
}

func (r *listenerReader) address(a *corev3.Address, path string) error {
	if s := a.GetSocketAddress(); s != nil && isHostName(s.GetAddress()) { // names are for endpoints
		return fmt.Errorf("%s.socket_address.address: %q: want an IP address", path, s.GetAddress())
	}
	at, cant, err := readAddress(a, true)
	switch {
	case err != nil:
		return fmt.Errorf("%s%w", path, err)
	case cant != "":
		r.refuse("%s: %s", path, cant)
		return nil
	case slices.Contains(r.l.Addresses, at):
		return fmt.Errorf("%s: %s is there twice", path, at)
	}
	if p := a.GetPipe(); p.GetMode() != 0 {
		if r.l.Mode = fs.FileMode(p.GetMode()); r.l.Mode&^fs.ModePerm != 0 {
			return fmt.Errorf("%s.pipe.mode: %#o: want up to 0777", path, p.GetMode())
		}
	}
	if a.GetSocketAddress().GetAddress() == "::" && !a.GetSocketAddress().GetIpv4Compat() {
		r.ignore("%s.socket_address.ipv4_compat false: IPv4 is taken too", path)
	}
	r.l.Addresses = append(r.l.Addresses, at)
	return nil
}

// sockets reads how the sockets are set up.
func (r *listenerReader) sockets(m *listenerv3.Listener) error {
	if b := m.GetDeprecatedV1().GetBindToPort(); b != nil {
		r.l.BindToPort = b.GetValue()
	}
	if b := m.GetBindToPort(); b != nil {
		r.l.BindToPort = b.GetValue()
	}
	if m.GetTransparent().GetValue() {
		r.refuse("transparent")
	}
	if m.GetFreebind().GetValue() {
		r.ignore("freebind")
	}
	if m.GetEnableMptcp() {
		r.ignore("enable_mptcp")
	}
	if n := m.GetTcpBacklogSize(); n != nil {
		r.l.Backlog = int(min(n.GetValue(), 1<<31-1))
	}
	if k := m.GetTcpKeepalive(); k != nil {
		r.l.Keepalive = readKeepalive(k)
	}
	return nil
}

// filters reads the listener filters.
func (r *listenerReader) filters(m *listenerv3.Listener) error {
	if d := m.GetListenerFiltersTimeout(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
			return fmt.Errorf("listener_filters_timeout: %s: want at least 0s", durationText(d))
		}
		r.l.FiltersTimeout = d.AsDuration()
	}
	r.l.ContinueOnTimeout = m.GetContinueOnListenerFiltersTimeout()
	r.l.UseOriginalDst = m.GetUseOriginalDst().GetValue()
	r.l.OriginalDst = r.l.UseOriginalDst // Envoy adds the filter
	for i, f := range m.GetListenerFilters() {
		path := fmt.Sprintf("listener_filters[%d]", i)
		if f.GetName() == "" {
			return fmt.Errorf("%s.name: missing", path)
		}
		if f.GetFilterDisabled() != nil {
			r.refuse("%s.filter_disabled", path)
		}
		if err := r.filter(f, path); err != nil {
			return err
		}
	}
	return nil
}

func (r *listenerReader) filter(f *listenerv3.ListenerFilter, path string) error {
	if f.GetConfigDiscovery() != nil {
		r.refuse("%s.config_discovery", path)
		return nil
	}
	typed := path + ".typed_config."
	switch typeName(f.GetTypedConfig()) {
	case "envoy.extensions.filters.listener.original_dst.v3.OriginalDst":
		r.l.OriginalDst = true
		return unmarshal(f.GetTypedConfig(), new(originaldstv3.OriginalDst), path)
	case "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector":
		r.l.Inspect = true
		var c tlsinspectorv3.TlsInspector
		if err := unmarshal(f.GetTypedConfig(), &c, path); err != nil {
			return err
		}
		r.fields(&c, typed, tlsInspectorFields)
	case "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol":
		var c proxyprotocolv3.ProxyProtocol
		if err := unmarshal(f.GetTypedConfig(), &c, path); err != nil {
			return err
		}
		r.l.Proxy, r.l.ProxyOptional = true, c.GetAllowRequestsWithoutProxyProtocol()
		r.unsupported = append(r.unsupported, r.fields(&c, typed, proxyProtocolFields)...)
	case "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector":
		r.httpInspector = path // what it finds out only chooses chains: see chains
		return unmarshal(f.GetTypedConfig(), new(httpinspectorv3.HttpInspector), path)
	default:
		r.refuse("%s %q", path, f.GetName())
	}
	return nil
}

// httpProtocols are what an http_inspector finds in plain text.
var httpProtocols = []string{"http/1.0", "http/1.1", "h2c"}

// choosesByHTTP reports whether a chain may be chosen by what an http_inspector finds,
// which does not look into TLS.
func choosesByHTTP(m filterchain.Match) bool {
	return m.TransportProtocol != filterchain.TransportTLS && slices.ContainsFunc(m.ApplicationProtocols, func(p string) bool { return slices.Contains(httpProtocols, p) })
}

// chains reads the filter chains.
func (r *listenerReader) chains(m *listenerv3.Listener) error {
	if n := len(m.GetFilterChains()); n > mostChains {
		return fmt.Errorf("filter_chains: %d: want at most %d", n, mostChains)
	}
	var rules []filterchain.Rule
	for i, c := range m.GetFilterChains() {
		chain, err := r.chain(c, fmt.Sprintf("filter_chains[%d].", i))
		if err != nil {
			return err
		}
		r.l.Chains = append(r.l.Chains, chain)
		rules = append(rules, filterchain.Rule{Name: chain.Name, Match: chain.Match})
	}
	matcher, err := filterchain.New(rules)
	if err != nil && m.GetFilterChainMatcher() == nil {
		return fmt.Errorf("filter_chains: %w", err)
	}
	if r.httpInspector != "" && slices.ContainsFunc(rules, func(x filterchain.Rule) bool { return choosesByHTTP(x.Match) }) {
		// Other chains would get what is meant for these, without their filters.
		r.refuse("%s http_inspector: a filter chain matches by application_protocols of HTTP without TLS", r.httpInspector)
	}
	if err == nil && matcher.Inspects() {
		r.l.Inspect = true // as Envoy, which adds the filter
	}
	if c := m.GetDefaultFilterChain(); c != nil {
		chain, err := r.chain(c, "default_filter_chain.")
		if err != nil {
			return err
		}
		chain.Match = filterchain.Match{}
		r.l.Default = &chain
	}
	if !r.proxies { // it is not one of TCP, and is not opened just to refuse
		for _, c := range r.l.Chains {
			r.unsupported = append(r.unsupported, c.Unsupported)
		}
		if r.l.Default != nil {
			r.unsupported = append(r.unsupported, r.l.Default.Unsupported)
		}
	}
	if len(r.l.Chains) == 0 && r.l.Default == nil && m.GetFcdsConfig() == nil && m.GetUdpListenerConfig() == nil && m.GetInternalListener() == nil {
		r.refuse("no filter chain")
	}
	return nil
}

// typeName returns the name of the message in a, "" if there is none.
func typeName(a *anypb.Any) string {
	url := a.GetTypeUrl()
	return url[strings.LastIndexByte(url, '/')+1:]
}

// unmarshal reads what is in a filter.
func unmarshal(a *anypb.Any, m proto.Message, path string) error {
	if err := guard.Unmarshal(a.GetValue(), m); err != nil {
		return fmt.Errorf("%s.typed_config: %w", path, err)
	}
	return nil
}

// durationText is for errors.
func durationText(d *durationpb.Duration) string {
	if err := d.CheckValid(); err != nil {
		return err.Error()
	}
	return d.AsDuration().String()
}

// setIn returns the name of the field that is set in a oneof.
func setIn(m proto.Message, oneof protoreflect.Name) protoreflect.Name {
	msg := m.ProtoReflect()
	if fd := msg.WhichOneof(msg.Descriptor().Oneofs().ByName(oneof)); fd != nil {
		return fd.Name()
	}
	return oneof
}
