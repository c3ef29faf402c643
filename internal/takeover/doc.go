// Package takeover hands the listening sockets of a process to the one that is to
// replace it, over a unix socket, so that no connection is refused between the two.
//
// # Usage
//
// The process that runs listens at a unix socket, and for each connection:
//
//	g, hello, err := takeover.Accept(ctx, conn)
//	defer g.Close()
//	err = g.Give(ctx, sockets)
//	err = g.AwaitReady(ctx)     // as long as the other one takes
//	err = g.Commit(ctx, nil)    // from here on the other one accepts
//
// The one that is to replace it:
//
//	t, err := takeover.Dial(ctx, path, takeover.Hello{Build: version})
//	defer t.Close()
//	use(t.Sockets)
//	err = t.Ready(ctx)          // returns when it may accept
//	err = t.Accepting(ctx)      // the other one accepts no more
//
// Until Commit has returned nil nothing has changed for the process that runs: an
// error, or the end of the other one, leaves it as it was. Between Ready and
// Accepting both accept from the same sockets.
//
// # Protocol
//
// Each message is a line of JSON, and bounded in size. The first one of the taker has
// the version of the protocol, and another one is refused with a reason. Sockets go
// by SCM_RIGHTS with the line that describes them.
//
//	taker                    giver
//	hello           ->
//	                <-       sockets, once or several times, or refused
//	ready           ->
//	                <-       go, or refused
//	accepting       ->
//	                <-       done, or refused
//
// Either side may say refused, with a text, in the place of any message. What can't
// be read ends the conversation and nothing else. Only a process of the same user, or
// of root, is listened to (SO_PEERCRED).
//
// # Concurrency
//
// A Giver and a Taker belong to one goroutine at a time.
//
// # Limitations
//
// Linux only: elsewhere Accept and Dial are an error. At most MaxSockets are handed.
package takeover
