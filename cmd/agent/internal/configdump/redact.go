package configdump

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	// What clusters are configured with that hold secrets: a type that is not
	// linked can't be looked into, and is left out.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// redacted stands in the place of a secret. Source: Envoy's MessageUtil::redact.
const redacted = "[redacted]"

// sensitiveOption is how Envoy's protos mark what must not be shown.
const sensitiveOption = "udpa.annotations.sensitive"

// payloadMessage is what a health check sends, which may be a password, and expects.
const payloadMessage = "envoy.config.core.v3.HealthCheck.Payload"

// maxNested bounds how deep configurations are nested in each other: those below are
// left out.
const maxNested = 16

// redact takes the secrets out of m, and what can't be shown.
func redact(m proto.Message) { redactor{}.message(m.ProtoReflect(), false) }

// redactor redacts what is so many configurations deep. What it has found that JSON
// has no form for, it says in odd.
type redactor struct {
	depth int
	odd   *bool
}

// message redacts m. With hide all of it is a secret.
func (r redactor) message(m protoreflect.Message, hide bool) {
	header := false
	switch m := m.Interface().(type) {
	case *anypb.Any:
		r.any(m, hide)
		return
	case *corev3.HeaderValue:
		header = true
	case *durationpb.Duration:
		r.need(m.IsValid())
	case *timestamppb.Timestamp:
		r.need(m.IsValid())
	case *fieldmaskpb.FieldMask:
		_, err := protojson.Marshal(m)
		r.need(err == nil)
	case *structpb.Value:
		n, number := m.GetKind().(*structpb.Value_NumberValue)
		r.need(m.GetKind() != nil && (!number || !math.IsNaN(n.NumberValue) && !math.IsInf(n.NumberValue, 0)))
	}
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		hide := hide || sensitive(fd) || header && fd.Name() != "key" || fd.Name() == "send" && fd.Message() != nil && fd.Message().FullName() == payloadMessage
		switch {
		case fd.IsMap():
			entries, value := v.Map(), fd.MapValue()
			entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if value.Message() != nil {
					r.message(v.Message(), hide)
				} else if hide {
					entries.Set(k, hidden(value))
				}
				return true
			})
		case fd.IsList():
			for i, list := 0, v.List(); i < list.Len(); i++ {
				if fd.Message() != nil {
					r.message(list.Get(i).Message(), hide)
				} else if hide {
					list.Set(i, hidden(fd))
				}
			}
		case fd.Message() != nil:
			r.message(v.Message(), hide)
		case hide || holdsKey(fd, v):
			m.Set(fd, hidden(fd))
		}
		return true
	})
}

func (r redactor) need(ok bool) {
	if !ok && r.odd != nil {
		*r.odd = true
	}
}

// any redacts what is in a, which becomes a Struct that says why if that can't be
// looked into or shown.
func (r redactor) any(a *anypb.Any, hide bool) {
	if a.GetTypeUrl() == "" && len(a.GetValue()) == 0 {
		return
	}
	why := r.inside(a, hide)
	if why == "" {
		return
	}
	left, err := structpb.NewStruct(map[string]any{
		"type_url": strings.ToValidUTF8(a.GetTypeUrl(), "?"),
		"left_out": fmt.Sprintf("%s: %d bytes", why, len(a.GetValue())),
	})
	if err == nil {
		err = anypb.MarshalFrom(a, left, proto.MarshalOptions{Deterministic: true})
	}
	if err != nil { // it can't be
		proto.Reset(a)
	}
}

// inside redacts what is in a, or returns why a is not to be shown.
func (r redactor) inside(a *anypb.Any, hide bool) (why string) {
	switch {
	case strings.HasSuffix(a.GetTypeUrl(), ".TypedStruct"):
		return "a configuration without a fixed type"
	case r.depth >= maxNested:
		return "nested too deep"
	case !utf8.ValidString(a.GetTypeUrl()): // JSON has no form for it
		return "a configuration whose type is no text"
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		return "a configuration of a type that is not known, or that can't be read"
	}
	odd := false
	redactor{r.depth + 1, &odd}.message(m.ProtoReflect(), hide)
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if odd || err != nil {
		return "a value that can't be shown, as a duration that is none"
	}
	a.Value = value
	return ""
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

// holdsKey reports whether v has a private key where nothing says that it is one, as
// a certificate chain may that was refused for it.
func holdsKey(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	const mark = "PRIVATE KEY-----"
	switch fd.Kind() {
	case protoreflect.StringKind:
		return strings.Contains(v.String(), mark)
	case protoreflect.BytesKind:
		return bytes.Contains(v.Bytes(), []byte(mark))
	}
	return false
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
