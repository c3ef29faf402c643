package xds

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse.internal/internal/tlsconf/tlstest"
)

var update = flag.Bool("update", false, "write the table of fields into README.md, and the golden files of what is decoded")

// roots are what a control plane gives.
var roots = []proto.Message{
	new(clusterv3.Cluster), new(endpointv3.ClusterLoadAssignment), new(listenerv3.Listener), new(tcpproxyv3.TcpProxy),
	new(tlsv3.DownstreamTlsContext), new(tlsv3.UpstreamTlsContext), new(tlsv3.Secret),
	new(rbacv3.RBAC), new(originaldstv3.OriginalDst), new(httpinspectorv3.HttpInspector), new(tlsinspectorv3.TlsInspector), new(proxyprotocolv3.ProxyProtocol),
}

// below returns the message that a field leads to, if its fields are to be decided
// about too: not those of Google's own types.
func below(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	if fd.Message() == nil || strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf.") {
		return nil
	}
	return fd.Message()
}

// walk calls visit for each field of md and of the messages in its applied fields.
// The path leads to the field. A message that is in itself is not walked again.
func walk(t *testing.T, md protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor, visit func(path []protoreflect.FieldDescriptor, u use)) {
	t.Helper()
	table, ok := fieldsOf[md.FullName()]
	if !ok {
		t.Errorf("%s: nothing is decided about its fields, which are reached by %s: add it to fieldsOf", md.FullName(), pathText(path))
		return
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		u, ok := table[string(fd.Name())]
		if !ok {
			t.Errorf("%s.%s: it is not decided what becomes of the field: add it to the table of its message", md.FullName(), fd.Name())
			continue
		}
		at := append(slices.Clone(path), fd)
		visit(at, u)
		in := func(fd protoreflect.FieldDescriptor) bool { return fd.Parent() == below(at[len(at)-1]) }
		if next := below(fd); u == applied && next != nil && !slices.ContainsFunc(at, in) {
			walk(t, next, at, visit)
		}
	}
}

func pathText(path []protoreflect.FieldDescriptor) string {
	var names []string
	for _, fd := range path {
		names = append(names, string(fd.Name()))
	}
	return strings.Join(names, ".")
}

// A field that a newer proto has is not passed over in silence.
func TestEveryFieldIsDecided(t *testing.T) {
	reached := make(map[protoreflect.FullName]map[string]bool)
	for _, root := range roots {
		walk(t, root.ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor, _ use) {
			fd := path[len(path)-1]
			name := fd.Parent().FullName()
			if reached[name] == nil {
				reached[name] = make(map[string]bool)
			}
			reached[name][string(fd.Name())] = true
		})
	}
	known := make(map[string]bool) // of all messages: some share a table
	for _, fields := range reached {
		for f := range fields {
			known[f] = true
		}
	}
	for name, table := range fieldsOf {
		if reached[name] == nil && len(table) > 0 {
			t.Errorf("%s: there is no way to it", name)
		}
		for f := range table {
			if !known[f] && reflect.ValueOf(table).Pointer() != reflect.ValueOf(policyFields).Pointer() { // which has those of typed policies too
				t.Errorf("%s.%s: there is no such field", name, f)
			}
		}
	}
}

// sample returns a resource in which a field of Cluster means something, before the
// field is set.
func sample(field string) *clusterv3.Cluster {
	c := edsCluster("c")
	switch {
	case field == "load_assignment":
		c = edsCluster("c", static())
		c.LoadAssignment = sampleAssignment()
	case strings.Contains(field, "dns"):
		c = edsCluster("c", static())
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.LoadAssignment = cla("c", locality(0, lb(socket("a.test", 80))))
	case field == "ring_hash_lb_config":
		c.LbPolicy = clusterv3.Cluster_RING_HASH
	case field == "maglev_lb_config":
		c.LbPolicy = clusterv3.Cluster_MAGLEV
	case field == "least_request_lb_config":
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	case field == "common_lb_config":
		c.LbPolicy = clusterv3.Cluster_RING_HASH
	case field == "health_checks":
		tcpCheck()(c)
	}
	return c
}

// sampleAssignment has one endpoint with all that has to be there.
func sampleAssignment() *endpointv3.ClusterLoadAssignment {
	return cla("c", locality(0, lb(socket("192.0.2.1", 80))))
}

// sampleProxy is a tcp_proxy, and sampleListener a listener with one.
func sampleProxy() *tcpproxyv3.TcpProxy {
	return &tcpproxyv3.TcpProxy{StatPrefix: "s", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "c"}}
}

func sampleListener() *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: "l", Address: socket("127.0.0.1", 80),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "tcp", ConfigType: filterOf(sampleProxy())}}}},
	}
}

var (
	sampleCA   *tlstest.CA
	samplePair tlstest.Pair
)

// sampleContext and sampleSecret hold samplePair, or what the path leads through.
func sampleContext() *tlsv3.DownstreamTlsContext {
	return downstreamTLS(sampleCA, samplePair)
}

func sampleSecret(path []protoreflect.FieldDescriptor) *tlsv3.Secret {
	if path[0].Name() == "validation_context" {
		return caSecret("s", sampleCA)
	}
	return certSecret("s", samplePair)
}

func filterOf(m proto.Message) *listenerv3.Filter_TypedConfig {
	return &listenerv3.Filter_TypedConfig{TypedConfig: packed(m)}
}

// packed is m in an Any.
func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

// materialise makes the messages on the way to the last field of path, and returns
// the one that has it. Of a list the first element is taken.
func materialise(m protoreflect.Message, path []protoreflect.FieldDescriptor) protoreflect.Message {
	for _, fd := range path[:len(path)-1] {
		if fd.IsMap() {
			key := protoreflect.ValueOfString("k").MapKey()
			if entries := m.Mutable(fd).Map(); !entries.Has(key) {
				entries.Set(key, entries.NewValue())
			}
			m = m.Get(fd).Map().Mutable(key).Message()
			complete(m.Interface())
			continue
		}
		if !fd.IsList() {
			m = m.Mutable(fd).Message()
			complete(m.Interface())
			continue
		}
		list := m.Mutable(fd).List()
		if list.Len() == 0 {
			list.AppendMutable()
		}
		m = list.Get(0).Message()
		complete(m.Interface())
	}
	complete(m.Interface())
	return m
}

// populate sets a field to something.
func populate(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsMap():
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("k").MapKey(), m.Mutable(fd).Map().NewValue())
	case fd.IsList() && fd.Message() != nil:
		m.Mutable(fd).List().AppendMutable()
	case fd.IsList():
		m.Mutable(fd).List().Append(scalar(fd))
	case fd.Message() != nil:
		special(m.Mutable(fd).Message().Interface())
	default:
		m.Set(fd, scalar(fd))
	}
}

// special gives well-known messages a value that is no default.
func special(m proto.Message) {
	r := m.ProtoReflect()
	switch r.Descriptor().FullName() {
	case "google.protobuf.Duration":
		r.Set(r.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(7))
	case "google.protobuf.UInt32Value", "google.protobuf.UInt64Value", "google.protobuf.BoolValue", "google.protobuf.DoubleValue":
		fd := r.Descriptor().Fields().ByName("value")
		r.Set(fd, scalar(fd))
	}
}

func scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(fd.Enum().Values().Get(fd.Enum().Values().Len() - 1).Number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(7)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(150)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(7)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("7")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("7"))
	}
	panic("no value for " + fd.FullName())
}

// decoded is all that comes of a resource.
type decoded struct {
	value       any // without what follows
	unsupported string
	ignored     []string // and notes
	leftOut     int
	err         error
}

func (d decoded) String() string {
	return fmt.Sprintf("unsupported %q, ignored %q, left out %d, error %v", d.unsupported, d.ignored, d.leftOut, d.err)
}

func isListenerFilter(m proto.Message) bool {
	return strings.HasPrefix(string(m.ProtoReflect().Descriptor().FullName()), "envoy.extensions.filters.listener.")
}

func decodeAny(t *testing.T, m proto.Message) (d decoded) {
	t.Helper()
	if u, ok := m.(*tlsv3.UpstreamTlsContext); ok {
		c := edsCluster("c")
		c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(u)}}
		m = c
	}
	if c, ok := m.(*clusterv3.Cluster); ok {
		_, v, err := decodeCluster(marshal(t, c))
		if err != nil {
			return decoded{err: err}
		}
		out := *v.(*Cluster)
		d.unsupported, d.ignored = out.Unsupported, out.Ignored
		out.Unsupported, out.Ignored = "", nil
		d.value = out
		return d
	}
	if p, ok := m.(*tcpproxyv3.TcpProxy); ok {
		l := sampleListener()
		l.FilterChains[0].Filters[0].ConfigType = filterOf(p)
		m = l
	}
	if f, ok := m.(*rbacv3.RBAC); ok {
		l := sampleListener()
		l.FilterChains[0].Filters = append([]*listenerv3.Filter{{Name: "rbac", ConfigType: filterOf(f)}}, l.FilterChains[0].Filters...)
		m = l
	}
	if isListenerFilter(m) {
		l := sampleListener()
		l.ListenerFilters = []*listenerv3.ListenerFilter{{Name: "filter", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed(m)}}}
		m = l
	}
	if c, ok := m.(*tlsv3.DownstreamTlsContext); ok {
		l := sampleListener()
		l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(c)}}
		m = l
	}
	if s, ok := m.(*tlsv3.Secret); ok {
		_, v, err := decodeSecret(marshal(t, s))
		if err != nil {
			return decoded{err: err}
		}
		out := *v.(*secret)
		d.unsupported, d.ignored = out.unsupported, out.ignored
		out.unsupported, out.ignored = "", nil
		d.value = out
		return d
	}
	if l, ok := m.(*listenerv3.Listener); ok {
		_, v, err := decodeListener(marshal(t, l))
		if err != nil {
			return decoded{err: err}
		}
		out := *v.(*Listener)
		d.unsupported, d.ignored = out.Unsupported, out.Ignored
		out.Unsupported, out.Ignored = "", nil
		for i := range out.Chains {
			d.unsupported += out.Chains[i].Unsupported
			out.Chains[i].Unsupported = ""
		}
		d.value = out
		return d
	}
	_, v, err := decodeAssignment(marshal(t, m))
	if err != nil {
		return decoded{err: err}
	}
	out := *v.(*assignment)
	d.ignored, d.leftOut = out.notes, out.leftOut
	out.notes, out.leftOut = nil, 0
	d.value = out
	return d
}

// unfit are fields that are applied, and of which no value that the test can make
// up changes anything by itself, and why.
var unfit = map[string]string{
	"load_assignment.cluster_name":                                       "says nothing in a cluster",
	"outlier_detection.successful_active_health_check_uneject_host":      "is true without a word",
	"transport_socket.typed_config":                                      "is an Any: TestDecodeUpstreamTLS",
	"health_checks.transport_socket_match_criteria":                      "is as nothing where it is empty: TestCheckTransport",
	"transport_socket_matches.match":                                     "matches all as one that is empty: TestTransportSocketMatches",
	"transport_socket_matches.transport_socket.typed_config":             "is an Any: TestTransportSocketMatches",
	"typed_dns_resolver_config.typed_config":                             "is an Any: TestResolver",
	"load_balancing_policy.policies.typed_extension_config.typed_config": "is an Any",
	"lrs_server.ads":            "is as unsupported as nothing",
	"cluster_type.typed_config": "is an Any: TestDNSCluster, TestAggregate",
	"filters.typed_config":      "is an Any: TestPassiveFilters",

	"common_tls_context.validation_context.system_root_certs":                                     "says nothing beside trusted_ca: TestDecodeUpstreamTLS",
	"common_tls_context.combined_validation_context.default_validation_context.system_root_certs": "the same",

	"filter_chains.filters.typed_config":          "is an Any",
	"filter_chains.transport_socket.typed_config": "is an Any",
	"listener_filters.typed_config":               "is an Any",
	"access_log.typed_config":                     "is an Any",
	"access_log.filter.status_code_filter":        "has the log left out",
	"access_log.filter.traceable_filter":          "has the log left out",
	"access_log.filter.and_filter":                "has the log left out",
	"access_log.filter.or_filter":                 "has the log left out",
	"access_log.filter.header_filter":             "has the log left out",
	"access_log.filter.grpc_status_filter":        "has the log left out",
	"access_log.filter.extension_filter":          "has the log left out",
	"access_log.filter.metadata_filter":           "has the log left out",
	"access_log.filter.log_type_filter":           "has the log left out",
	"bind_to_port":                                "is true without a word",
	"deprecated_v1.bind_to_port":                  "is true without a word",
}

// What the tables say of fields is what the decoders do with them.
func TestFieldsAreUsedAsDecided(t *testing.T) {
	sampleCA = tlstest.NewCA(t, "ca")
	samplePair = sampleCA.Issue(t, tlstest.Leaf{})
	for _, root := range roots {
		walk(t, root.ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor, u use) {
			name := pathText(path)
			if slices.ContainsFunc(path, func(fd protoreflect.FieldDescriptor) bool { return below(fd) != nil && tooDeep(fd, path) }) {
				return
			}
			if path[0].Name() == "default_filter_chain" && len(path) > 1 {
				return // as in filter_chains, but for what it matches, which means nothing
			}
			if path[0].Name() == "shadow_rules" && len(path) > 1 {
				return // as in rules, but that they are left out where these are unsupported: TestDecodeRBACUnsupported
			}
			var before proto.Message
			switch root.(type) {
			case *clusterv3.Cluster:
				before = sample(string(path[0].Name()))
			case *listenerv3.Listener:
				before = sampleListener()
			case *tcpproxyv3.TcpProxy:
				before = sampleProxy()
			case *rbacv3.RBAC, *tlsinspectorv3.TlsInspector, *proxyprotocolv3.ProxyProtocol:
				before = proto.Clone(root)
			case *tlsv3.DownstreamTlsContext:
				before = sampleContext()
			case *tlsv3.UpstreamTlsContext:
				before = upstreamTLS(sampleCA, samplePair)
			case *tlsv3.Secret:
				before = sampleSecret(path)
			default:
				before = sampleAssignment()
			}
			parent := materialise(before.ProtoReflect(), path)
			fd := path[len(path)-1]
			after := proto.Clone(before)
			changed := materialise(after.ProtoReflect(), path)
			if changed.Has(fd) && !fd.IsList() {
				parent.Clear(fd) // so that setting it is a change
			}
			populate(changed, fd)
			was, is := decodeAny(t, before), decodeAny(t, after)
			same := reflect.DeepEqual(was.value, is.value)
			named := func(list []string, was []string) bool {
				return len(list) > len(was) && strings.Contains(strings.Join(list, " "), string(fd.Name()))
			}
			t.Run(name, func(t *testing.T) {
				switch u {
				case applied:
					if _, ok := unfit[name]; ok || below(fd) != nil && len(fieldsOf[below(fd).FullName()]) > 0 {
						return // what is in a message is seen by itself
					}
					if same && slices.Equal(was.ignored, is.ignored) && was.unsupported == is.unsupported && fmt.Sprint(was.err) == fmt.Sprint(is.err) {
						t.Errorf("it is decided to be applied, and setting it changes nothing: %v", after)
					}
				case harmless:
					if !same || was.unsupported != is.unsupported || !slices.Equal(was.ignored, is.ignored) || fmt.Sprint(was.err) != fmt.Sprint(is.err) {
						t.Errorf("it is decided to be harmless, and setting it changes\n%s to\n%s", was, is)
					}
				case ignored:
					if unfit[name] == "" && !same || was.unsupported != is.unsupported || is.err != nil || !named(is.ignored, was.ignored) {
						t.Errorf("it is decided to be ignored, and setting it changes\n%s to\n%s", was, is)
					}
				case refused:
					source := fd.Parent().FullName() == "envoy.config.core.v3.ConfigSource" // others than ads and self have one reason
					if is.unsupported == "" || !source && !strings.Contains(is.unsupported, string(fd.Name())) || is.err != nil {
						t.Errorf("it is decided to be unsupported, and setting it changes\n%s to\n%s", was, is)
					}
				case invalid:
					if is.err == nil || !strings.Contains(is.err.Error(), "address_suffix") { // there is no other
						t.Errorf("it is decided to be invalid, and setting it changes\n%s to\n%s", was, is)
					}
				case leftOut:
					if is.err != nil || is.unsupported != was.unsupported || len(is.ignored) <= len(was.ignored) {
						t.Errorf("it is decided that the endpoint is left out, and setting it changes\n%s to\n%s", was, is)
					}
				}
			})
		})
	}
}

// tooDeep reports whether a message has another meaning where it lies: addresses
// are read by other rules in each place, and tested there.
func tooDeep(fd protoreflect.FieldDescriptor, path []protoreflect.FieldDescriptor) bool {
	switch fd.Message().FullName() {
	case "envoy.config.core.v3.Address", "envoy.config.core.v3.SocketAddress", "envoy.config.core.v3.Metadata":
		return path[len(path)-1] != fd
	}
	return false
}

// useText says a use in the table.
var useText = map[use]string{
	applied: "used", harmless: "ignored, harmless", ignored: "ignored, listed", refused: "unsupported", leftOut: "endpoint left out", invalid: "invalid",
}

// The README has what is decided, for whoever writes a control plane.
func TestREADME(t *testing.T) {
	const begin, end = "<!-- fields: begin -->\n", "<!-- fields: end -->\n"
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(fieldsOf)) {
		desc := descriptorOf(t, name)
		if desc == nil || desc.Fields().Len() == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| field | what becomes of it |\n| --- | --- |\n", name)
		for i := range desc.Fields().Len() {
			f := desc.Fields().Get(i).Name()
			fmt.Fprintf(&b, "| `%s` | %s |\n", f, useText[fieldsOf[name][string(f)]])
		}
	}
	want := begin + b.String() + "\n" + end
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	from, to := strings.Index(string(text), begin), strings.Index(string(text), end)
	if from < 0 || to < from {
		t.Fatalf("README.md has no %q and %q", begin, end)
	}
	if string(text[from:to+len(end)]) == want {
		return
	}
	if !*update {
		t.Fatal("the table in README.md is not what is decided: go test ./xds -run TestREADME -update")
	}
	if err := os.WriteFile("README.md", []byte(string(text[:from])+want+string(text[to+len(end):])), 0o644); err != nil {
		t.Fatal(err)
	}
}

// descriptorOf finds a message among those that the roots lead to.
func descriptorOf(t *testing.T, name protoreflect.FullName) (found protoreflect.MessageDescriptor) {
	for _, root := range roots {
		if d := root.ProtoReflect().Descriptor(); d.FullName() == name {
			return d
		}
		walk(t, root.ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor, _ use) {
			if d := below(path[len(path)-1]); d != nil && d.FullName() == name {
				found = d
			}
		})
	}
	return found
}
