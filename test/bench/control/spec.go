package control

import "time"

// The subjects.
const (
	Gatehouse = "gatehouse"
	GRPC      = "grpc-go"
)

// The cases, each with fresh clients.
const (
	Updates = "updates" // first sync, latency and CPU of updates
	Memory  = "memory"  // what clusters and endpoints take
)

// The variants of the protocol. GRPC has the latter only.
const (
	Delta = "delta"
	SotW  = "sotw"
)

// Spec is what Take measures. It travels as JSON.
type Spec struct {
	Subject   string        `json:"subject"`
	Case      string        `json:"case"`
	Variant   string        `json:"variant"`
	Exe       string        `json:"exe"`       // the client's program
	Clusters  int           `json:"clusters"`  // at least 2, at most 10,000
	Endpoints int           `json:"endpoints"` // of each; 2 to 100
	Timed     int           `json:"timed"`     // updates whose latency is measured
	Each      time.Duration `json:"each"`      // how long CPU is measured for, with updates and without
}

// Values are figures by their names.
type Values = map[string]float64

// The figures. Those of memory are in bytes.
const (
	Sync     = "sync"     // ms from the start of the process until all clusters are there
	P50      = "p50"      // ms from the server's send to the first pick
	P99      = "p99"      // the same; of less than 100 it is the longest
	CPU      = "cpu"      // us an update
	Sets     = "sets"     // that differed from the one before, an update; Gatehouse only
	Builds   = "builds"   // of selectors, an update; Gatehouse only
	RSS      = "rss"      // after the updates
	Endpoint = "endpoint" // of heap an endpoint, without the selectors' storage where that is known
	Cluster  = "cluster"  // of heap a cluster with one endpoint, the same
	Storage  = "storage"  // of all selectors; Gatehouse only
)
