package adsgrpc

import (
	"context"

	loadv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// maxLoadResponse bounds what a server can say about load reports, in bytes: that
// is some 20,000 names of clusters.
const maxLoadResponse = 1 << 20

// LoadStream is a stream of load reports (LRS).
type LoadStream struct {
	grpc.BidiStreamingClient[loadv3.LoadStatsRequest, loadv3.LoadStatsResponse]
	conn *grpc.ClientConn
}

// OpenLoads opens a stream of load reports, with the credentials and the metadata that
// other streams have. It ends when ctx does, and must be closed then too. It may be
// called beside all other methods.
func (t *Transport) OpenLoads(ctx context.Context) (*LoadStream, error) {
	ctx, conn, cause, err := t.connect(ctx, grpc.MaxCallRecvMsgSize(maxLoadResponse))
	if err != nil {
		return nil, err
	}
	s, err := loadv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx)
	if err != nil {
		conn.Close()
		return nil, cause(err)
	}
	return &LoadStream{s, conn}, nil
}

// Close frees the connection. Neither Send nor Recv may be running.
func (s *LoadStream) Close() { s.conn.Close() }

// EndLoads says why a stream of load reports ended, or was not opened, with err, and
// whether that is not expected to be better soon.
func (t *Transport) EndLoads(err error) (reason string, refused bool) {
	reason, code := words(err)
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return reason, true
	}
	return reason, false
}
