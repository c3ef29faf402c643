// Package admin is the agent's HTTP side: whether it is ready, what it knows,
// and its metrics. Paths and shapes are Envoy's, so that scripts carry over;
// what Envoy has not stands in one object or one prefix named gatehouse.
//
//	/                        the live page, and links to what there is
//	/events[?cluster=]       what feeds it: server-sent events, for this version's page only
//	/ready                   200 LIVE and what is of before a restart, or 503 and what the agent waits for
//	/live                    200 while the process runs
//	/clusters[?format=json]  clusters, endpoints, selectors
//	/listeners[?format=json] listeners and their connections
//	/connections[?format=json] open connections, at most 1000, or limit=N up to 10000; of one by listener=NAME
//	/config_dump[?include_eds][&resource=F][&name_regex=R][&mask=P,…]
//	                         what is configured and what the control plane has said, as package configdump has it
//	/healthchecks[?format=json]
//	                         what is probed, and which clusters share it
//	/explain?cluster=[&selector=][&key=][&format=json]
//	                         how a connection gets its endpoint, from the selector that serves
//	/selectors?cluster=      all that the selectors of a cluster choose by, as JSON
//	/stats/prometheus        metrics
//	/server_info             version, state, uptime, state_dir
//	POST /envoy.service.status.v3.ClientStatusDiscoveryService/…
//	                         CSDS, by gRPC (HTTP/2 without TLS)
//	/debug/pprof/{name}[?debug=][?seconds=]
//	                         profiles as of net/http/pprof: profile (of CPU, up to 30 s), goroutine, heap, allocs, block, mutex, threadcreate
//	/debug/log               the newest lines of the log
//	/logging[?format=json]   the level of the log
//	POST /logging?level=     changes it: debug, info, warn, error
//	POST /reload[?wait=30s]  reads the configuration anew; answers when it is in force, see Reload
//	POST /endpoints/{cluster}/{address}/enable, and disable
//	                         the operator's word on an endpoint, whose address is escaped as a part of a path
//	POST /drain_listeners[?graceful] closes the listeners; with graceful their connections end within drain_timeout
//
// # Usage
//
//	ln, err := net.Listen("tcp", "127.0.0.1:9901")
//	err = admin.Serve(ctx, ln, admin.Handler(admin.Config{...}), admin.ServeConfig{})
//
// # Concurrency
//
// Every answer is made from one Status that the node hands out, one of the control
// plane's client and one list of the health service; nothing here holds up a
// connection. Configuration dumps are made one after the other, and so are the looks of
// live pages.
//
// # Limitations
//
// Without Config.Token and ServeConfig.TLS there is no authentication: the address
// belongs on loopback or on a unix socket then, and package config takes no other. There
// is one token, and who has it may do everything; so may who shows a certificate. At
// most 128 connections, each with 32 requests, are open at once, and who is let in can
// take all of them; who is not keeps no place that another wants. A request has headers of 16 KiB and a body of 64 KiB at most. At most 16 CSDS streams and 8 live pages are open at once. What a browser
// sends changes nothing without the token that the live page holds. Secrets are not
// shown. By a name in DNS that leads to the interface nothing is changed, unless it is one of
// Config.Hosts; and nothing but /live and /ready is read, unless there is Config.Token or
// TLS, without which a page under that name could read what the browser's user may.
package admin
