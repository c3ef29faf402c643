package xds

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxWalk bounds how deep messages within messages are looked at.
const maxWalk = 100

// secretIn returns the field of a resource that holds what must not be on disk, or
// "". Such are inline values that Envoy marks as sensitive, private keys wherever
// they are, headers that carry credentials, and transport sockets that this program
// can't look into.
func secretIn(url, body string) string {
	if strings.Contains(body, "PRIVATE KEY-----") {
		return "a private key"
	}
	if url != ClusterType { // endpoints hold addresses
		return ""
	}
	var m clusterv3.Cluster
	if err := proto.Unmarshal([]byte(body), &m); err != nil {
		return "what can't be read"
	}
	return secretField(m.ProtoReflect(), false, 0)
}

// secretField looks at the fields of m. In a transport socket nothing may be
// unknown.
func secretField(m protoreflect.Message, socket bool, depth int) (found string) {
	if depth > maxWalk {
		return "what is nested too deeply"
	}
	switch x := m.Interface().(type) {
	case *anypb.Any:
		inner, err := x.UnmarshalNew()
		if err == nil {
			return secretField(inner.ProtoReflect(), socket, depth+1)
		}
		if socket {
			return x.GetTypeUrl()
		}
		return ""
	case *corev3.HeaderValue:
		if isCredential(x.GetKey()) {
			return "header " + x.GetKey()
		}
	case *corev3.TransportSocket:
		socket = true
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
					found = secretField(v.List().Get(i).Message(), socket, depth+1)
				}
			}
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					found = secretField(v.Message(), socket, depth+1)
					return found == ""
				})
			}
		default:
			found = secretField(v.Message(), socket, depth+1)
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
