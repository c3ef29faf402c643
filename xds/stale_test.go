package xds

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// perishable is web(n), good for ten seconds.
func perishable(n int) proto.Message {
	m := web(n).(*endpointv3.ClusterLoadAssignment)
	m.Policy = &endpointv3.ClusterLoadAssignment_Policy{EndpointStaleAfter: durationpb.New(10 * time.Second)}
	return m
}

// Endpoints that are not sent again within endpoint_stale_after are taken away, as
// in Envoy; each time that they are sent, also unchanged, it begins anew.
func TestEndpointStaleAfter(t *testing.T) {
	const gone = `fail: eds "web": it was not sent again within 10s (endpoint_stale_after)`
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		rec, stop := f.watch("web")
		seen := 0
		f.respond(AssignmentType, 1, perishable(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
		pass(9 * time.Second)
		f.respond(AssignmentType, 2, perishable(1)) // the same again
		pass(9 * time.Second)
		reports(t, rec, &seen)
		pass(time.Second)
		reports(t, rec, &seen, "[]", gone)
		late, _ := f.watch("web")
		seenLate := 0
		reports(t, late, &seenLate, "[]", gone)

		// It comes back, unchanged too.
		f.respond(AssignmentType, 3, perishable(1))
		reports(t, rec, &seen, "[10.0.0.1:80]")
		if c := f.client.Counters(); c.Stale != 1 || c.Assignments.Changed != 1 {
			t.Errorf("counters %+v", c)
		}
		if n := strings.Count(f.log.String(), "eds resource is stale"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, &f.log)
		}

		// A resource without the field stays for ever.
		f.respond(AssignmentType, 4, web(2))
		reports(t, rec, &seen, "[10.0.0.2:80]")
		pass(time.Hour)
		reports(t, rec, &seen)

		// The time goes on while the server is away, and when it refuses to say more.
		f.respond(AssignmentType, 5, perishable(3))
		reports(t, rec, &seen, "[10.0.0.3:80]")
		f.respond(AssignmentType, 6, badWeb())
		reports(t, rec, &seen, `fail: eds "web": rejected: `+badWeight)
		f.refuseWith(syscall.ECONNREFUSED)
		f.stream().fail <- io.EOF
		pass(10 * time.Second)
		if last := rec.Reports(); last[len(last)-1].String() != gone {
			t.Errorf("reports: %v", rec)
		}
		stop()
	})
	// Who wants it no more leaves no timer.
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		_, stop := f.watch("web")
		f.respond(AssignmentType, 1, perishable(1))
		stop()
		pass(time.Hour)
		if c := f.client.Counters(); c.Stale != 0 {
			t.Errorf("counters %+v", c)
		}
	})
}

// A server that makes everything stale does not fill the log.
func TestStaleLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var all []proto.Message
		for i := range 100 {
			name := fmt.Sprint("web", i)
			_, stop := f.watch(name)
			defer stop()
			m := cla(name, locality(0, lb(socket("10.0.0.1", 80))))
			m.Policy = &endpointv3.ClusterLoadAssignment_Policy{EndpointStaleAfter: durationpb.New(time.Millisecond)}
			all = append(all, m)
		}
		for i := range 10 {
			f.respond(AssignmentType, i+1, all...)
			pass(time.Second)
		}
		if c := f.client.Counters(); c.Stale != 1000 {
			t.Errorf("counters %+v", c)
		}
		if n := strings.Count(f.log.String(), "eds resource is stale"); n == 0 || n > causeBurst+2 {
			t.Errorf("%d warnings", n)
		}
	})
}
