// Package healthsvc probes backends, each distinct check once for the whole
// node, however many clusters ask for it.
//
// A [Key] says what is probed and how: an address and the canonical text of
// all that is sent and expected. Who wants a key probed takes a [Ref] to it.
// The probes of a key are one stream, run at the fastest [Cadence] that
// anybody asks for at the moment; every distinct pair of [Thresholds] turns
// the one stream into a verdict of its own.
//
// # Usage
//
//	svc := healthsvc.NewService(healthsvc.Config{})
//	wg.Go(func() { svc.Run(ctx) })
//
//	probe := healthsvc.HTTP{Path: "/health", Host: "web.internal"}
//	key := healthsvc.Key{Addr: addr, Spec: probe.Spec()}
//	ref := svc.Acquire(key, probe,
//		healthsvc.Cadence{Interval: 5 * time.Second, Timeout: time.Second},
//		healthsvc.Thresholds{Healthy: 2, Unhealthy: 3}, wake)
//	defer ref.Release()
//	ref.State().Load() // live; selectors read it on every pick
//
// To change settings, acquire with the new ones and release the old Ref
// afterwards: what is known of the key is kept.
//
// # When probes start
//
// A new key is probed at once, plus its initial jitter. New keys, keys whose
// cadence has just become faster and keys that are overdue because the process
// stood still start at no more than 2,000 a second, in the order in which they
// came; everything else starts when it is due. The interval counts from the
// start of a probe to the start of the next. A key has at most one probe in
// flight: one that outlasts its interval delays the next and is never doubled.
//
// At most Config.Workers probes are in flight, each with one descriptor; those
// that are due beyond that wait in line. With n keys that all time out,
// n x timeout / interval workers are busy, and 2,000 x timeout (in seconds) in a
// burst of new ones. The default of 2,048 is for 10,000 keys with an interval of
// 10 s and a timeout of 1 s, even if none of them answers.
//
// # Concurrency
//
// Acquire, Release, State, Status and Stats may be called from anywhere, also
// before Run; they take one short lock. Run is the scheduler: it owns the
// timers, hands probes to workers that it starts as they are needed and ends
// before it returns, and calls the onChange functions.
//
// # Limitations
//
// Without Run nothing is probed, and an ended Service can't be run again. A
// key's timeout and jitter are those of its fastest cadence, also for those
// who ask for a slower one. A [Probe] must return soon after its context ends:
// one that doesn't keeps its worker, and in the end Run.
package healthsvc
