package xds

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"gatehouse.internal/xds/internal/core"
)

// FlowControl: a watcher that takes its time over the first set is told of the
// newest state when it gets to it, whatever came meanwhile; the others are told
// of everything, and every response is read and answered.
func TestFlowControl(t *testing.T) {
	resource := func(version string, m proto.Message) core.Response {
		return core.Response{Type: AssignmentType, Version: version, Nonce: version,
			Resources: []core.Resource{{Type: AssignmentType, Name: "web", Version: version, Body: marshal(t, m)}}}
	}
	api := resource("2", cla("api", locality(0, lb(socket("10.0.0.9", 80)))))
	api.Resources[0].Name = "api"
	for name, tt := range map[string]struct {
		meanwhile   []core.Response
		slow, quick []string
	}{
		"SingleResource": {
			[]core.Response{resource("2", web(2)), resource("3", web(3))},
			[]string{"[10.0.0.3:80]"}, []string{"[10.0.0.2:80]", "[10.0.0.3:80]"},
		},
		"MultipleResources": {
			[]core.Response{api, resource("3", web(3))},
			[]string{"[10.0.0.3:80]"}, []string{"[10.0.0.3:80]"},
		},
		"ResourceErrors": {
			[]core.Response{resource("2", badWeb()), {Type: AssignmentType, Nonce: "3", Errors: []core.ResourceError{{Name: "web", Code: 7, Reason: "not yours"}}}},
			[]string{`fail: eds "web": xds server control:18000 can't give it: not yours`},
			[]string{`fail: eds "web": rejected: ` + badWeight, `fail: eds "web": xds server control:18000 can't give it: not yours`},
		},
		"ResourceDoesNotExist": {
			[]core.Response{resource("2", web(2)), {Type: AssignmentType, Nonce: "3", Removed: []string{"web"}}},
			[]string{"[10.0.0.2:80]", `fail: eds "web": no such resource: xds server control:18000 deleted it`},
			[]string{"[10.0.0.2:80]", `fail: eds "web": no such resource: xds server control:18000 deleted it`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, func(f *fakeServer) { f.variant = core.Delta })
				slow := &slowSink{entered: make(chan struct{}, 100), leave: make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { f.client.EDS("web", nil).Watch(ctx, slow) })
				quick, _ := f.watch("web")
				f.watch("api")
				synctest.Wait()
				f.answer(resource("1", web(1)))
				<-slow.entered
				seen := 0
				reports(t, quick, &seen, "[10.0.0.1:80]")
				for _, r := range tt.meanwhile {
					f.answer(r)
				}
				reports(t, quick, &seen, tt.quick...)
				answered := 0
				for {
					select {
					case r := <-f.stream().requests:
						if r.Nonce != "" {
							answered++
						}
						continue
					default:
					}
					break
				}
				if answered != 1+len(tt.meanwhile) {
					t.Errorf("%d of %d responses are answered", answered, 1+len(tt.meanwhile))
				}
				close(slow.leave)
				synctest.Wait()
				cancel()
				wg.Wait()
				var got []string
				for _, r := range slow.Reports()[1:] {
					got = append(got, r.String())
				}
				if fmt.Sprint(got) != fmt.Sprint(tt.slow) {
					t.Errorf("the slow watcher was told\n%q, want\n%q", got, tt.slow)
				}
			})
		})
	}
}
