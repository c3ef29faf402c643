package xds

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse.internal/xds/internal/guard"
)

// maxWalk bounds how deep messages within messages are looked at.
const maxWalk = 100

// secretIn returns the field of a resource that holds what must not be on disk, or
// "". Such are inline values that Envoy marks as sensitive, private keys wherever
// they are, headers that carry credentials, and transport sockets and filters that
// this program can't look into.
func secretIn(url, body string) string {
	if strings.Contains(body, "PRIVATE KEY-----") {
		return "a private key"
	}
	var m proto.Message
	switch url {
	case ClusterType:
		m = new(clusterv3.Cluster)
	case ListenerType:
		m = new(listenerv3.Listener)
	default: // endpoints hold addresses
		return ""
	}
	if err := guard.Unmarshal([]byte(body), m); err != nil {
		return "what can't be read"
	}
	return secretField(m.ProtoReflect(), false, 0)
}

// secretField looks at the fields of m. Where it is strict nothing may be unknown: in
// a transport socket, and in a filter, without which a filter chain is not run.
func secretField(m protoreflect.Message, strict bool, depth int) (found string) {
	if depth > maxWalk {
		return "what is nested too deeply"
	}
	switch x := m.Interface().(type) {
	case *anypb.Any:
		inner, err := x.UnmarshalNew()
		if err == nil {
			return secretField(inner.ProtoReflect(), strict, depth+1)
		}
		if strict {
			return x.GetTypeUrl()
		}
		return ""
	case *corev3.HeaderValue:
		if isCredential(x.GetKey()) {
			return "header " + x.GetKey()
		}
	case *corev3.TransportSocket, *listenerv3.Filter, *listenerv3.ListenerFilter:
		strict = true
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(fd.FullName())
		switch {
		case sensitive(fd) && !elsewhere(fd, v):
			found = name
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				if found == "" {
					found = secretField(v.List().Get(i).Message(), strict, depth+1)
				}
			}
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					found = secretField(v.Message(), strict, depth+1)
					return found == ""
				})
			}
		default:
			found = secretField(v.Message(), strict, depth+1)
		}
		return found == ""
	})
	return found
}

// sensitive reports whether Envoy's protos mark fd so.
func sensitive(fd protoreflect.FieldDescriptor) bool {
	mark, err := protoregistry.GlobalTypes.FindExtensionByName("udpa.annotations.sensitive")
	if err != nil {
		return true // can't tell
	}
	opts := fd.Options()
	return opts != nil && proto.HasExtension(opts, mark) && proto.GetExtension(opts, mark) == true
}

// elsewhere reports whether v says only where the secret is.
func elsewhere(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	if fd.Message() == nil || fd.IsList() || fd.IsMap() {
		return false
	}
	src, ok := v.Message().Interface().(*corev3.DataSource)
	if !ok {
		return false
	}
	return src.GetFilename() != "" || src.GetEnvironmentVariable() != ""
}

// isCredential reports whether a header of that name is likely to be secret.
func isCredential(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"auth", "cookie", "token", "secret", "password", "key"} {
		if strings.Contains(name, s) && name != ":authority" {
			return true
		}
	}
	return false
}
