// Package tlsconf makes TLS contexts whose certificates rotate: a Client for
// connections that the agent opens, a Server for those that it accepts. Both
// read PEM files, watch them, and publish a new configuration when they change.
// What a peer's certificate must name is said by Matchers, SPIFFE IDs included.
//
// # Usage
//
//	client, err := tlsconf.NewClient(tlsconf.ClientConfig{
//		CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem",
//	})
//	wg.Go(func() { client.Run(ctx) })
//	...
//	conn := tls.Client(raw, client.Config("web.internal"))
//	if err := conn.HandshakeContext(ctx); err != nil {
//		return tlsconf.Explain(err)
//	}
//
// A server asks for the configuration once a connection:
//
//	conn := tls.Server(raw, server.Config())
//
// In TLS 1.3 a client's handshake ends before the server has looked at the
// client's certificate: the refusal is the error of the client's first read,
// which Explain explains too.
//
// # Concurrency
//
// Config and Status may be called from anywhere at any time; they read one
// atomic pointer. What they return is published and must not be written to. Run
// is the only writer; it runs once at a time. Without Run nothing rotates.
//
// # Rotation
//
// It doesn't matter how a file is replaced: see package filewatch. Certificate and
// key that change at different moments don't fit each other for a while: what can't
// be used is tried again for two seconds before it counts as an error. The last good files stay in force
// until better ones are there, also when their certificate expires meanwhile,
// which is warned of a day before, or when a quarter of its time is left, and
// when it has; a Server may refuse its clients then (RefuseExpired). What is given by itself and not by a file (KeyPair, ClientCA) stays.
//
// Each load is a generation. No session is resumed across generations: each has
// its own ticket keys (Server) or session cache (Client), so that a peer that the
// new files don't accept can't come back by an old ticket. A full handshake with
// each peer is what a rotation costs. Connections that exist are left alone.
//
// # Limitations
//
// Revocation lists and OCSP are not supported, and pins only of servers. Each Client or Server with files takes one inotify instance
// while it runs; where there are no more, the files are polled each 30 s. Which
// authority may name which SPIFFE trust domain is not checked: every authority
// in a CA file may name all of them.
//
// Why rotation is not by tls.Config.GetConfigForClient: crypto/tls would let the
// configurations that it returns share the ticket keys of the first one, and a
// client of an authority that was taken out could resume.
package tlsconf
