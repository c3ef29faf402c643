// Package discoverytest holds what the tests of every discovery.Source share:
// the conformance suite that each of them passes, and a recording Sink.
//
// # Usage
//
//	discoverytest.Run(t, discoverytest.Harness{
//		New: func(t *testing.T) (discovery.Source, discoverytest.World) {
//			server := startServer(t)
//			return newSource(server.Addr()), discoverytest.World{
//				Set: server.Set, Break: server.Stop, Heal: server.Start,
//			}
//		},
//	})
//
// # Concurrency
//
// Run's subtests are not parallel, since they count goroutines. A Recorder may
// be used from anywhere.
//
// # Limitations
//
// The suite lists plain endpoints and compares addresses (and one weight), so
// that mechanisms which know no more, such as DNS, can pass. How attributes
// are carried over is for the tests of each source.
package discoverytest
