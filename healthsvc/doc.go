// Package healthsvc probes backends, each distinct check once for the whole
// node, however many clusters ask for it.
//
// A [Key] says what is probed and how: an address and the canonical text of
// all that is sent and expected. Who wants a key probed takes a [Ref] to it.
// The probes of a key are one stream, run at the fastest [Cadence] that
// anybody asks for at the moment; every distinct pair of [Thresholds] turns
// the one stream into a verdict of its own, in which a probe fails that took longer
// than the timeout of those who share it. The kinds of probe are [TCP], [HTTP]
// and [GRPC], each over TLS and behind a PROXY header if its [Transport] says so.
//
// # Usage
//
//	svc := healthsvc.NewService(healthsvc.Config{})
//	wg.Go(func() { svc.Run(ctx) })
//
//	probe := healthsvc.HTTP{Path: "/health", Host: "web.internal"}
//	key := healthsvc.Key{Addr: addr, Spec: probe.Spec()}
//	ref := svc.Acquire(key, probe, &healthsvc.Ask{
//		View:       "web",
//		Cadence:    healthsvc.Cadence{Interval: 5 * time.Second, Timeout: time.Second},
//		Thresholds: healthsvc.Thresholds{Healthy: 2, Unhealthy: 3},
//		OnChange:   wake,
//	})
//	defer ref.Release()
//	ref.State().Load() // live; selectors read it on every pick
//
// To change settings, acquire with the new ones and release the old Ref
// afterwards: what is known of the key is kept.
//
// # When probes start
//
// A new key is probed at once, plus its initial jitter, the shortest that is asked for. New keys, keys whose
// cadence has just become faster and keys that are overdue because the process
// stood still start at no more than 2,000 a second: first those that have no result
// yet, then the others, each in the order in which they came. Everything else starts
// when it is due. The interval counts from the
// start of a probe to the start of the next (Envoy counts from its end). A key has
// at most one probe in flight: one that outlasts its interval delays the next and
// is never doubled. A probe that runs out of time while the process itself stood
// still for more than 2 s is no result. Nor is one for which the node lacked
// descriptors, ports or memory: that is logged at most once a minute, and [Ref.Stuck]
// says that it goes on. An address that the node has no route to fails.
//
// Each Ref's Cadence has its own view of what follows a probe, by its verdict and
// its traffic; the stream takes the shortest. So while a change is pending for one
// Ref, all share in the probes at its edge interval.
//
// # After a restart
//
// Export and Import carry verdicts over to the next run of a process, in which each goes
// on as if there had been no restart: it takes as many results against it as its threshold
// says. Until then, or until one speaks for it, it is Status.Restored. A key that was not
// probed by the same thresholds and timeout before is unknown.
//
// # Workers
//
// Probes are run by goroutines that are started as they are needed. There are
// never more of them than
//
//	max(sum of longest timeout / shortest interval over the keys, 2,000/s x longest timeout)
//
// and 65,536, or Config.MaxWorkers: with the first all keys may time out at once, interval after
// interval, and still each is probed in time; with the second a burst of new keys,
// none of which answers, keeps its pace. There are no more than keys either, since
// a key has one probe in flight, and those that are too many leave. Each probe
// takes one descriptor, and a lack of these is no result: such a probe is made anew
// within a second, at the pace of new keys. The process therefore gives as
// Config.MaxWorkers what descriptors it has for probes. Config.Workers sets another
// number; those that are due beyond it wait in line, which is logged once; keys whose last
// probe timed out and others take turns.
//
// # Concurrency
//
// Acquire, Release, State, Status, Keys and Stats may be called from anywhere, also
// before Run; they take one short lock. Run is the scheduler: it owns the
// timers, hands probes to workers that it starts as they are needed and ends
// before it returns, and calls the OnChange functions.
//
// # Limitations
//
// Without Run nothing is probed, and an ended Service can't be run again. A
// key's interval jitter is that of its fastest cadence, also for those who ask for a
// slower one. A key's probes run to the longest timeout that is asked for, and so a
// backend that does not answer at all is probed, and found unhealthy, no faster than
// that by those with shorter timeouts. A [Probe] must return soon after its context ends:
// one that doesn't keeps its worker, and in the end Run. A TCP probe over TLS that
// sends and expects nothing passes with the handshake: in TLS 1.3 the server has
// not judged our certificate by then. A panic in a probe is contained, but for those on
// the goroutines on which package grpc reads and writes.
package healthsvc
