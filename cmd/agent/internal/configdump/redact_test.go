package configdump

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/xds"
)

// canary is in every place where a secret can be.
const canary = "c4n4ry"

func inline(text string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func payload(s string) *corev3.HealthCheck_Payload {
	return &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Binary{Binary: []byte(s)}}
}

// secretive returns a cluster with a secret in each of its places, which say
// "shown" where there is none.
func secretive(t *testing.T) *clusterv3.Cluster {
	header := []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization-shown", Value: canary}}, {Header: &corev3.HeaderValue{Key: "raw", RawValue: []byte(canary)}}}
	c := &clusterv3.Cluster{
		Name: "shown",
		TransportSocket: &corev3.TransportSocket{Name: "tls-shown", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, &tlsv3.UpstreamTlsContext{
			Sni: "sni.shown",
			CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{
				{CertificateChain: inline("certificate-shown"), PrivateKey: inline(canary), Password: inline(canary)},
				{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(canary)}}},
				{PrivateKeyProvider: &tlsv3.PrivateKeyProvider{ProviderName: "provider-shown", ConfigType: &tlsv3.PrivateKeyProvider_TypedConfig{
					TypedConfig: pack(t, &corev3.HeaderValue{Key: canary}),
				}}},
			}},
		})}},
		HealthChecks: []*corev3.HealthCheck{{HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Path: "/shown", RequestHeadersToAdd: header, Send: payload(canary),
		}}}, {HealthChecker: &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{
			Send: payload(canary), Receive: []*corev3.HealthCheck_Payload{{Payload: &corev3.HealthCheck_Payload_Text{Text: "2b-shown"}}, {Payload: &corev3.HealthCheck_Payload_Binary{Binary: []byte("ok")}}},
		}}}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"unknown":  {TypeUrl: "type.googleapis.com/example.Unknown-shown", Value: []byte("\x0a\x06" + canary)},
			"typed":    {TypeUrl: "type.googleapis.com/xds.type.v3.TypedStruct", Value: []byte("\x0a\x06" + canary)},
			"unsound":  {TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Value: []byte("\x0a\x7f" + canary)},
			"no-type":  {Value: []byte(canary)},
			"not-utf8": {TypeUrl: "type.googleapis.com/", Value: []byte(canary)},
			"nested": pack(t, &corev3.TransportSocket{Name: "nested-shown", ConfigType: &corev3.TransportSocket_TypedConfig{
				TypedConfig: pack(t, &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline(canary)}}),
			}}),
		},
	}
	c.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 9999, protowire.BytesType), canary))
	return c
}

// No answer has a secret, wherever the control plane, the configuration or what was
// refused has one; what is no secret is there.
func TestSecretsAreNotShown(t *testing.T) {
	body, err := proto.Marshal(secretive(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(body, []byte(canary)); n < 12 {
		t.Fatalf("the canary is planted %d times only", n)
	}
	listener, err := proto.Marshal(&listenerv3.Listener{Name: "listener-shown", FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "filter-shown", ConfigType: &listenerv3.Filter_TypedConfig{
			TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/example.Filter-shown", Value: []byte("\x0a\x06" + canary)},
		}}},
		TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline("chain-shown"), PrivateKey: inline(canary)}},
			}}),
		}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	const keyPEM = "-----BEGIN PRIVATE KEY-----\n" + canary
	secretOf := func(m *tlsv3.Secret) xds.ResourceStatus {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return xds.ResourceStatus{Name: m.Name, State: "nacked", Error: "secret-why-shown", Body: string(b), Refused: string(b), Updated: time.Now()}
	}
	secrets := []xds.ResourceStatus{
		secretOf(&tlsv3.Secret{Name: "secret-shown", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline("secret-chain-shown"), PrivateKey: inline(canary), Password: inline(canary),
		}}}),
		secretOf(&tlsv3.Secret{Name: "misplaced-shown", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(keyPEM)}}}),
		secretOf(&tlsv3.Secret{Name: "misplaced-too-shown", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(keyPEM)}},
		}}}),
		secretOf(&tlsv3.Secret{Name: "tickets-shown", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline(canary)}}}}),
		secretOf(&tlsv3.Secret{Name: "generic-shown", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline(canary)}}}),
	}
	d := fixed(Config{
		Node: xds.Node{ID: "node-shown", Metadata: map[string]any{"tenant": "tenant-shown"}}, Started: time.Now(), Clusters: true,
		Servers: []xds.Server{{
			URI: "control-shown:1", Metadata: map[string]string{"x-token": canary}, MetadataFiles: map[string]string{"x-shown": "/run/" + canary},
			TokenFile: "/run/" + canary, TLS: &xds.TLS{CAFile: "/etc/ca-shown.pem", CertFile: "/etc/cert.pem", KeyFile: "/etc/" + canary},
		}},
		Static: []config.Cluster{{Name: "static-shown", TLS: config.UpstreamTLS{KeyFile: "/etc/" + canary}}},
		Status: func() xds.Status {
			return xds.Status{Types: []xds.TypeStatus{{URL: xds.ClusterType, Resources: []xds.ResourceStatus{{
				Name: "shown", State: "nacked", Error: "why-shown", Body: string(body), Refused: string(body), Updated: time.Now(),
			}}}, {URL: xds.ListenerType, Resources: []xds.ResourceStatus{{
				Name: "listener-shown", State: "nacked", Error: "no-key-shown", Body: string(listener), Refused: string(listener), Updated: time.Now(),
			}}}, {URL: xds.SecretType, Resources: secrets}}}
		},
	})
	check := func(what string, text []byte, must ...string) {
		t.Helper()
		if i := bytes.Index(text, []byte(canary)); i >= 0 {
			t.Errorf("%s has the canary: …%q…", what, text[max(0, i-80):i+10])
		}
		for _, m := range must {
			if !bytes.Contains(text, []byte(m)) {
				t.Errorf("%s lacks %q", what, m)
			}
		}
	}
	ofCluster := []string{
		redacted, "authorization-shown", "tls-shown", "sni.shown", "certificate-shown", "provider-shown", "/shown", "Unknown-shown", "nested-shown", "why-shown",
		"TypedStruct", "without a fixed type", "static-shown", "listener-shown", "filter-shown", "Filter-shown", "chain-shown", "no-key-shown",
		"secret-shown", "secret-chain-shown", "misplaced-shown", "misplaced-too-shown", "tickets-shown", "generic-shown", "secret-why-shown",
	}
	messages, err := d.Configs(Query{IncludeEDS: true})
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, m := range messages {
		binary, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		check("a binary message", binary)
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	check("the dump", all, append(ofCluster, "node-shown", "tenant-shown", "control-shown", "x-token", "x-shown", "ca-shown")...)
	answer, err := d.FetchClientStatus(t.Context(), new(statusv3.ClientStatusRequest))
	if err != nil {
		t.Fatal(err)
	}
	binary, err := proto.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	check("CSDS", binary, append(ofCluster, "node-shown")...)
	if text, err := protojson.Marshal(answer); err != nil || !strings.Contains(string(text), "why-shown") {
		t.Errorf("CSDS as JSON: %v\n%s", err, text)
	}
	if again, err := proto.Marshal(secretive(t)); err != nil || len(again) != len(body) || !bytes.Contains(body, []byte(canary)) {
		t.Error("what was shown was written to")
	}
}

// What JSON has no form for, as a refused version may have it, and what is nested
// without end, spoils no dump: it is left out, and the rest is there.
func TestOddResources(t *testing.T) {
	nested := &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
	for range 500 {
		nested = pack(t, &corev3.TransportSocket{Name: "x", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: nested}})
	}
	for name, odd := range map[string]*clusterv3.Cluster{
		"a duration": {ConnectTimeout: &durationpb.Duration{Seconds: 1, Nanos: -1}},
		"a number":   {Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": {Fields: map[string]*structpb.Value{"nan": structpb.NewNumberValue(math.NaN())}}}}},
		"no value":   {Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": {Fields: map[string]*structpb.Value{"none": {}}}}}},
		"nesting":    {TypedExtensionProtocolOptions: map[string]*anypb.Any{"x": nested}},
	} {
		d := fixed(Config{Node: xds.Node{ID: "n"}, Status: func() xds.Status {
			return xds.Status{Types: []xds.TypeStatus{{URL: xds.ClusterType, Resources: []xds.ResourceStatus{
				{Name: "good", State: "acked", Body: body(t, &clusterv3.Cluster{Name: "good-shown"})},
				{Name: "odd", State: "nacked", Error: "why", Refused: body(t, odd)},
			}}}}
		}})
		answer, err := d.FetchClientStatus(t.Context(), new(statusv3.ClientStatusRequest))
		if err != nil {
			t.Fatal(err)
		}
		text, err := protojson.Marshal(answer)
		if err != nil || !strings.Contains(string(text), "good-shown") || !strings.Contains(string(text), "left_out") || len(text) > 10_000 {
			t.Errorf("%s: %v\n%.2000s", name, err, text)
		}
	}
}

// Whatever a control plane sends can be shown, as messages and as JSON, and once
// redacted it stays as it is.
func FuzzRedact(f *testing.F) {
	for _, m := range []proto.Message{
		&clusterv3.Cluster{Name: "web", ConnectTimeout: &durationpb.Duration{Nanos: -1}},
		&corev3.HeaderValue{Key: "a", Value: "b"},
		&fieldmaskpb.FieldMask{Paths: []string{"a.B", "_"}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("type.googleapis.com/"+string(m.ProtoReflect().Descriptor().FullName()), b)
	}
	f.Add("type.googleapis.com/example.Unknown", []byte("x"))
	f.Add("", []byte("x"))
	f.Fuzz(func(t *testing.T, url string, value []byte) {
		a := &anypb.Any{TypeUrl: url, Value: value}
		redact(a)
		if _, err := protojson.Marshal(a); err != nil {
			t.Fatalf("it can't be shown: %v", err)
		}
		again := proto.CloneOf(a)
		if redact(again); !proto.Equal(a, again) {
			t.Errorf("%v became %v", a, again)
		}
	})
}

// A secret in anything that is shown of a cluster is found: each field that Envoy
// calls sensitive is.
func TestSensitiveFields(t *testing.T) {
	for m, want := range map[proto.Message][]string{
		new(tlsv3.TlsCertificate):       {"password", "private_key"},
		new(tlsv3.TlsSessionTicketKeys): {"keys"},
		new(tlsv3.GenericSecret):        {"secret", "secrets"},
		new(corev3.Node):                nil,
	} {
		var got []string
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if sensitive(fields.Get(i)) {
				got = append(got, string(fields.Get(i).Name()))
			}
		}
		for _, w := range want {
			if !strings.Contains(strings.Join(got, " "), w) {
				t.Errorf("%T: sensitive are %q, want %q", m, got, want)
			}
		}
		if want == nil && got != nil {
			t.Errorf("%T: sensitive are %q", m, got)
		}
	}
}
