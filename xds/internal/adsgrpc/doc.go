// Package adsgrpc opens ADS streams to management servers over gRPC, in both
// variants of the protocol, and speaks in the terms of package core on them; and
// streams of load reports (LRS) by the same credentials, with OpenLoads.
//
// # Usage
//
//	t, err := adsgrpc.New(server, ads.Options{Node: node})
//	wg.Go(func() { t.Run(ctx) })
//	s, err := t.Open(ctx)
//	err = s.Send(request)
//	response, err := s.Recv()
//	reason, how := t.End(err, heard)
//
// A stream has a connection of its own: a new attempt is a new dial, so that
// nobody's back-off but the caller's own counts, and certificates, tokens and
// metadata files are read anew.
//
// # Concurrency
//
// Of one Transport, one stream is open at a time, and Open, End and the Close
// before the next Open are called one after the other. On a stream, one
// goroutine may send while another receives. Run and OpenLoads run beside all of it.
//
// # Limits
//
// A message has a limit in bytes, and in resources, so that one of nothing but
// empty ones takes no more memory than one of full ones. A token or a value of
// metadata has 64 KiB at most. Tokens go over TLS or a unix socket only;
// metadata goes as it is told to.
package adsgrpc
