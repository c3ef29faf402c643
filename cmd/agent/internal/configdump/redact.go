package configdump

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	// What clusters are configured with that hold secrets: a type that is not
	// linked can't be looked into, and is left out.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// redacted stands in the place of a secret. Source: Envoy's MessageUtil::redact.
const redacted = "[redacted]"

// sensitiveOption is how Envoy's protos mark what must not be shown.
const sensitiveOption = "udpa.annotations.sensitive"

// redact takes the secrets out of m. With hide all of it is one.
func redact(m protoreflect.Message, hide bool) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		redactAny(a, hide)
		return
	}
	_, header := m.Interface().(*corev3.HeaderValue)
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		hide := hide || sensitive(fd) || header && fd.Name() != "key"
		switch {
		case fd.IsMap():
			entries, value := v.Map(), fd.MapValue()
			entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if value.Message() != nil {
					redact(v.Message(), hide)
				} else if hide {
					entries.Set(k, hidden(value))
				}
				return true
			})
		case fd.IsList():
			for i, list := 0, v.List(); i < list.Len(); i++ {
				if fd.Message() != nil {
					redact(list.Get(i).Message(), hide)
				} else if hide {
					list.Set(i, hidden(fd))
				}
			}
		case fd.Message() != nil:
			redact(v.Message(), hide)
		case hide:
			m.Set(fd, hidden(fd))
		}
		return true
	})
}

// redactAny redacts what is in a, which becomes a Struct that says why if that
// can't be looked into.
func redactAny(a *anypb.Any, hide bool) {
	if a.GetTypeUrl() == "" && len(a.GetValue()) == 0 {
		return
	}
	why := ""
	m, err := anypb.UnmarshalNew(a, proto.UnmarshalOptions{})
	switch {
	case strings.HasSuffix(a.GetTypeUrl(), ".TypedStruct"):
		why = "a configuration without a fixed type"
	case err == nil:
		redact(m.ProtoReflect(), hide)
		if a.Value, err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err == nil {
			return
		}
		fallthrough
	default:
		why = "a configuration of a type that is not known, or that can't be read"
	}
	left, err := structpb.NewStruct(map[string]any{
		"type_url": strings.ToValidUTF8(a.GetTypeUrl(), "?"),
		"left_out": fmt.Sprintf("%s: %d bytes", why, len(a.GetValue())),
	})
	if err == nil {
		err = a.MarshalFrom(left)
	}
	if err != nil { // it can't be
		proto.Reset(a)
	}
}

// hidden is the value of a field that holds a secret, or of an element of it.
func hidden(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(redacted)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(redacted))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(0)
	}
	return fd.Default()
}

// sensitive reports whether a field is marked as one that must not be shown.
func sensitive(fd protoreflect.FieldDescriptor) bool {
	xt, err := protoregistry.GlobalTypes.FindExtensionByName(sensitiveOption)
	if err != nil || !proto.HasExtension(fd.Options(), xt) {
		return false
	}
	on, _ := proto.GetExtension(fd.Options(), xt).(bool)
	return on
}
