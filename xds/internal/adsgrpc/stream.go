package adsgrpc

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"gatehouse.internal/xds/internal/core"
	"gatehouse.internal/xds/internal/guard"
	"gatehouse.internal/xds/internal/names"
)

// maxResources bounds the resources, and everything else that occurs repeatedly,
// of one response.
const maxResources = 1 << 18

// maxTTL bounds the TTL of a resource: longer is for ever.
const maxTTL = 10 * 365 * 24 * time.Hour

// wrapper is the type of resources that are wrapped in the state of the world.
const wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// Stream is an ADS stream.
type Stream struct {
	t     *Transport
	conn  *grpc.ClientConn
	codec *codec
	sotw  grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	delta grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
}

// Variant returns the stream's variant, which its requests must have.
func (s *Stream) Variant() core.Variant { return s.t.variant }

// Close frees the connection. Neither Send nor Recv may be running.
func (s *Stream) Close() { s.conn.Close() }

// Send returns when the request is on its way to the server. It returns io.EOF if
// the stream is over; Recv says why.
func (s *Stream) Send(r core.Request) error {
	if s.delta != nil {
		return s.delta.Send(s.t.deltaRequest(r))
	}
	return s.sotw.Send(s.t.request(r))
}

func (t *Transport) request(r core.Request) *discoveryv3.DiscoveryRequest {
	m := &discoveryv3.DiscoveryRequest{
		TypeUrl:       r.Type,
		VersionInfo:   r.Version,
		ResponseNonce: r.Nonce,
		ResourceNames: r.Names,
	}
	if r.Node {
		m.Node = t.opts.Node
	}
	if r.Error != "" {
		m.ErrorDetail = status.New(codes.InvalidArgument, r.Error).Proto()
	}
	return m
}

func (t *Transport) deltaRequest(r core.Request) *discoveryv3.DeltaDiscoveryRequest {
	m := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl:                  r.Type,
		ResponseNonce:            r.Nonce,
		ResourceNamesSubscribe:   r.Subscribe,
		ResourceNamesUnsubscribe: r.Unsubscribe,
	}
	for _, h := range r.Initial {
		if m.InitialResourceVersions == nil {
			m.InitialResourceVersions = make(map[string]string, len(r.Initial))
		}
		m.InitialResourceVersions[h.Name] = h.Version
	}
	if r.Node {
		m.Node = t.opts.Node
	}
	if r.Error != "" {
		m.ErrorDetail = status.New(codes.InvalidArgument, r.Error).Proto()
	}
	return m
}

// Recv returns the next response.
func (s *Stream) Recv() (core.Response, error) {
	if s.delta != nil {
		m, err := s.delta.Recv()
		if err != nil {
			return core.Response{}, s.failed(err)
		}
		return deltaResponse(m), nil
	}
	m, err := s.sotw.Recv()
	if err != nil {
		return core.Response{}, s.failed(err)
	}
	return response(m), nil
}

// failed notes whether it was the message that ended the stream.
func (s *Stream) failed(err error) error {
	s.t.unfit = s.codec.err
	if s.codec.err != nil {
		return s.codec.err
	}
	return err
}

func response(m *discoveryv3.DiscoveryResponse) core.Response {
	r := core.Response{Type: m.GetTypeUrl(), Version: m.GetVersionInfo(), Nonce: m.GetNonce()}
	for _, res := range m.GetResources() {
		if res.GetTypeUrl() == wrapper {
			w := new(discoveryv3.Resource)
			if guard.Unmarshal(res.GetValue(), w) == nil {
				r.Resources = append(r.Resources, resource(w))
				continue
			}
		}
		r.Resources = append(r.Resources, core.Resource{Type: res.GetTypeUrl(), Body: res.GetValue()})
	}
	r.Errors = resourceErrors(m.GetResourceErrors())
	return r
}

func deltaResponse(m *discoveryv3.DeltaDiscoveryResponse) core.Response {
	r := core.Response{Type: m.GetTypeUrl(), Version: m.GetSystemVersionInfo(), Nonce: m.GetNonce()}
	for _, res := range m.GetResources() {
		r.Resources = append(r.Resources, resource(res))
	}
	for _, name := range m.GetRemovedResources() {
		r.Removed = append(r.Removed, names.Canonical(name))
	}
	for _, name := range m.GetRemovedResourceNames() {
		r.Removed = append(r.Removed, names.Canonical(name.GetName()))
	}
	r.Errors = resourceErrors(m.GetResourceErrors())
	return r
}

// resource unwraps a resource.
func resource(w *discoveryv3.Resource) core.Resource {
	r := core.Resource{Version: w.GetVersion(), Name: names.Canonical(cmp.Or(w.GetName(), w.GetResourceName().GetName()))}
	if ttl := w.GetTtl().AsDuration(); w.GetTtl() != nil && ttl > 0 && ttl < maxTTL {
		r.TTL = ttl.Nanoseconds()
	}
	body := w.GetResource()
	if r.Bare = body == nil; !r.Bare {
		r.Type, r.Body = body.GetTypeUrl(), body.GetValue()
	}
	return r
}

func resourceErrors(list []*discoveryv3.ResourceError) (out []core.ResourceError) {
	for _, e := range list {
		s := status.FromProto(e.GetErrorDetail())
		out = append(out, core.ResourceError{
			Name: names.Canonical(e.GetResourceName().GetName()), Code: uint32(s.Code()),
			Reason: fmt.Sprintf("%s (%s)", s.Message(), s.Code()),
		})
	}
	return out
}

// codec is gRPC's codec for protobuf with two differences: what it writes is the
// same bytes for the same message, and it looks at the number of resources of a
// message before it makes room for them.
type codec struct {
	err error // why the last message could not be read
}

func (c *codec) Name() string { return "proto" }

func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if c.err = count(buf.ReadOnlyData()); c.err == nil {
		if err := guard.Unmarshal(buf.ReadOnlyData(), m); err != nil {
			c.err = fmt.Errorf("the server sent what is no response: %w", err)
		}
	}
	return c.err
}

// count returns an error for a message with too many fields.
func count(data []byte) error {
	for n := 0; len(data) > 0; n++ {
		if n == maxResources {
			return fmt.Errorf("the server sent a response with more than %d resources", maxResources)
		}
		_, _, size := protowire.ConsumeField(data)
		if size < 0 {
			return errors.New("the server sent what is no response: " + protowire.ParseError(size).Error())
		}
		data = data[size:]
	}
	return nil
}
