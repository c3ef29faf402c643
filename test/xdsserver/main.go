// Command xdsserver is a small control plane to try the agent with: it gives every
// client the resources of a file, by go-control-plane's ADS server.
//
// # Usage
//
//	go run ./test/xdsserver -listen 127.0.0.1:18000 resources.json
//
// The file is a DiscoveryResponse in JSON: its "resources" are clusters, endpoints and
// listeners, each with its "@type". It is read again each second; what has changed is
// sent, and a file with a mistake changes nothing.
//
// # Limitations
//
// It is for trying things out: plain text, no authentication, no secrets (SDS).
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	// The types that resources may have parts of.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// everybody is the one snapshot that all nodes have.
type everybody struct{}

func (everybody) ID(*corev3.Node) string { return "" }

func main() {
	listen := flag.String("listen", "127.0.0.1:18000", "the `address` to serve at")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: xdsserver [-listen ADDRESS] FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, address, file string) error {
	cache := cachev3.NewSnapshotCache(true, everybody{}, nil)
	var last []byte
	version := 0
	update := func() error {
		text, err := os.ReadFile(file)
		if err != nil || bytes.Equal(text, last) {
			return err
		}
		last = text
		resources, err := decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		version++
		snapshot, err := cachev3.NewSnapshot(strconv.Itoa(version), resources)
		if err != nil {
			return err
		}
		log.Printf("version %d: %d resources", version, len(resources[resourcev3.ClusterType])+len(resources[resourcev3.EndpointType])+len(resources[resourcev3.ListenerType]))
		return cache.SetSnapshot(ctx, "", snapshot)
	}
	if err := update(); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, cache, nil))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	log.Printf("serving %s at %s", file, ln.Addr())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			server.Stop()
			<-served
			return nil
		case err := <-served:
			return err
		case <-tick.C:
			if err := update(); err != nil {
				log.Print(err)
			}
		}
	}
}

// decode returns the resources of a DiscoveryResponse in JSON, by type.
func decode(text []byte) (map[resourcev3.Type][]types.Resource, error) {
	var response discoveryv3.DiscoveryResponse
	if err := protojson.Unmarshal(text, &response); err != nil {
		return nil, err
	}
	all := map[resourcev3.Type][]types.Resource{resourcev3.ClusterType: {}, resourcev3.EndpointType: {}, resourcev3.ListenerType: {}}
	for _, r := range response.Resources {
		if _, ok := all[r.TypeUrl]; !ok {
			return nil, fmt.Errorf("resources of the type %s are not served", r.TypeUrl)
		}
		m, err := r.UnmarshalNew()
		if err != nil {
			return nil, err
		}
		all[r.TypeUrl] = append(all[r.TypeUrl], m)
	}
	return all, nil
}
