package configdump

import (
	"context"
	"errors"
	"io"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gatehouse.internal/xds"
)

// FetchClientStatus implements statusv3.ClientStatusDiscoveryServiceServer: it tells
// of every resource of the control plane that is held or asked for, and of the
// clusters of the files. There is one client, and so node matchers are refused.
// Source: gRFC A40.
func (x *Dumper) FetchClientStatus(_ context.Context, r *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	d := snapshot{x.now()}
	if len(r.GetNodeMatchers()) > 0 {
		return nil, status.Error(codes.InvalidArgument, "node_matchers are not supported: there is one client here")
	}
	c := &statusv3.ClientConfig{Node: node(d.cfg)}
	var st xds.Status
	if d.cfg.Status != nil {
		st = d.cfg.Status()
	}
	for _, s := range d.cfg.Static {
		x := &statusv3.ClientConfig_GenericXdsConfig{
			TypeUrl: xds.ClusterType, Name: s.Name, LastUpdated: stamp(d.cfg.Started), IsStaticResource: true,
		}
		if !r.GetExcludeResourceContents() {
			x.XdsConfig = packed(staticCluster(s))
		}
		c.GenericXdsConfigs = append(c.GenericXdsConfigs, x)
	}
	for _, t := range st.Types {
		for _, res := range t.Resources {
			if r.GetExcludeResourceContents() {
				res.Body, res.Refused = "", ""
			}
			c.GenericXdsConfigs = append(c.GenericXdsConfigs, &statusv3.ClientConfig_GenericXdsConfig{
				TypeUrl: t.URL, Name: res.Name, VersionInfo: res.Version, XdsConfig: inForce(t, res), LastUpdated: stamp(res.Updated),
				ClientStatus: clientStatus(res), ErrorState: errorState(t, res),
			})
		}
	}
	redact(c)
	return &statusv3.ClientStatusResponse{Config: []*statusv3.ClientConfig{c}}, nil
}

// StreamClientStatus implements statusv3.ClientStatusDiscoveryServiceServer: each
// request is answered once, as by FetchClientStatus; nothing is sent unasked.
func (x *Dumper) StreamClientStatus(s grpc.BidiStreamingServer[statusv3.ClientStatusRequest, statusv3.ClientStatusResponse]) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer, err := x.FetchClientStatus(s.Context(), r)
		if err != nil {
			return err
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}
