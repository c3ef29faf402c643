package xds

import (
	"fmt"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"gatehouse.internal/xds/internal/core"
)

// BenchmarkOneOfMany takes in an EDS response with all assignments, of 50
// endpoints each, of which one has changed.
func BenchmarkOneOfMany(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint("clusters=", n), func(b *testing.B) {
			c := core.New(1, core.Type{URL: AssignmentType, Decode: decodeAssignment})
			r := core.Response{Type: AssignmentType}
			body := func(i, change int) []byte {
				var eps []*endpointv3.LbEndpoint
				for e := range 50 {
					eps = append(eps, lb(socket(fmt.Sprintf("10.%d.%d.%d", i/250, i%250, e), uint32(8000+change))))
				}
				return marshal(b, cla(fmt.Sprint("c", i), locality(0, eps...)))
			}
			for i := range n {
				c.Subscribe(AssignmentType, fmt.Sprint("c", i))
				r.Resources = append(r.Resources, core.Resource{Type: AssignmentType, Body: body(i, 0)})
			}
			other := [2][]byte{body(0, 0), body(0, 1)}
			c.Connected(0, core.StateOfTheWorld)
			k := 0
			step := func() {
				r.Version, r.Nonce = fmt.Sprint("v", k), fmt.Sprint("n", k)
				r.Resources[0].Body = other[k%2]
				k++
				c.Response(0, r)
				c.Flush()
				c.Sent(0)
				c.Take()
			}
			step()
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
