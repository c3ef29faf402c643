// Package configdump says, in Envoy's messages, what the agent is configured with
// and what it holds of its control plane: as /config_dump has it, and as the
// client status discovery service (CSDS) does.
//
// # Usage
//
//	d := configdump.New(configdump.Config{...})
//	messages, err := d.Configs(configdump.Query{IncludeEDS: true})
//	statusv3.RegisterClientStatusDiscoveryServiceServer(grpcServer, d)
//
// # Secrets
//
// No secret is in an answer. Fields that Envoy's protos call sensitive, and all
// below them, read "[redacted]", as do what holds a private key as PEM, the values of
// headers, and gRPC's initial metadata. Fields that this program does not know are left out. A configuration of
// a type that it does not know, or one without a fixed type (TypedStruct), is
// replaced by a google.protobuf.Struct that names the type, as is one that JSON has no
// form for, or that is nested more than 16 deep. The metadata of nodes
// and clusters is shown, as Envoy does.
//
// # Concurrency
//
// A Dumper's methods may be called from anywhere, at the same time. Each answer is
// made anew from one xds.Status.
//
// # Limitations
//
// Of a cluster of the files there is what Envoy's Cluster has a field for; metadata
// of the filter name "gatehouse" says where its endpoints come from and which
// selectors it has. Of a cluster of the control plane that is warming there is the
// version that warms, not the one that still serves. Listeners of the files are not in
// it.
package configdump
