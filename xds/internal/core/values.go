package core

// Wildcard is the name that subscribes to every resource of a type.
// Source: xds_protocol.rst, "How the client specifies what resources to return".
const Wildcard = "*"

// A Type describes one resource type that the client understands.
type Type struct {
	// URL is the type URL, "type.googleapis.com/…".
	URL string
	// Complete says that a response lists everything that is subscribed to, so
	// that a resource missing from it has been deleted: LDS and CDS.
	Complete bool
	// Decode reads one resource. With an error it returns the name all the
	// same if it could be read, and a value if a part of the resource is of
	// use (it comes back in Invalid). It must be a pure function.
	Decode func(body []byte) (name string, value any, err error)
}

// A Perishable value is one of which it may count when it was sent last.
type Perishable interface{ Perishes() bool }

// A Variant is one of the two forms of the protocol.
type Variant uint8

// The variants.
const (
	// StateOfTheWorld has complete lists in requests and, of some types, in
	// responses. It is the zero value.
	StateOfTheWorld Variant = iota
	// Delta, the incremental variant, has what changed.
	Delta
)

// String returns "sotw" or "delta".
func (v Variant) String() string { return [...]string{"sotw", "delta"}[v] }

// A Request is one message to the server, in plain values.
// Source: envoy.service.discovery.v3.DiscoveryRequest, DeltaDiscoveryRequest.
type Request struct {
	Variant Variant
	Type    string
	// Nonce is that of the last response on this stream in the state of the
	// world, and in Delta that of the response that is answered, if one is.
	Nonce string
	// Node says that the request is the stream's first and must carry the node.
	Node bool
	// Error makes the request a NACK. It is never empty in one.
	Error string

	// Version is the last version accepted. State of the world only.
	Version string
	// Names is sorted and complete. Empty means everything, if it is the first
	// list of its type on the stream, and nothing later on. State of the world
	// only.
	Names []string

	// Subscribe and Unsubscribe are sorted changes to what was asked for, and
	// Initial is what is held, sorted by name, in the first request of a type on
	// a stream, which asks for everything if Subscribe is empty. Delta only.
	Subscribe, Unsubscribe []string
	Initial                []Held
}

// Held is a resource that the client has.
type Held struct{ Name, Version string }

// A Resource is one resource of a Response, not yet decoded.
type Resource struct {
	Type string
	Body []byte
	// Bare says that there is no body and no type: with a TTL it is a heartbeat.
	Bare bool
	// Name and Version are those of the wrapper around it, if it has one, as in
	// Delta each has.
	Name, Version string
	// TTL is how long the resource is good for, in nanoseconds; 0 is for ever.
	TTL int64
}

// A Response is one message from the server, in plain values.
// Source: envoy.service.discovery.v3.DiscoveryResponse, DeltaDiscoveryResponse.
type Response struct {
	Type, Version, Nonce string
	Resources            []Resource
	// Removed names resources that don't exist, any more or at all. Delta only.
	Removed []string
	// Errors are the names that the server can't give a resource for.
	Errors []ResourceError
	// Mark is what the shell knows this response by, as when it came: see Nack.
	Mark int64
}

// A ResourceError says why a server can't give a resource. Code is gRPC's.
// Source: envoy.service.discovery.v3.ResourceError.
type ResourceError struct {
	Name   string
	Code   uint32
	Reason string
}

// An Ending says how to go on after a stream.
type Ending uint8

// The endings.
const (
	// Lost is to be tried again: after a stream with a response soon, else after
	// a delay that grows.
	Lost Ending = iota
	// Refused is not expected to be better soon: the delay is the longest, unless
	// the stream had a response.
	Refused
	// Unfit is to be tried again after the longest delay, whatever the stream had:
	// the server sends what can't be taken, and would again.
	Unfit
	// Again is to be tried at once and counts as no failure.
	Again
)

// Longest is the Attempt of a StartTimer that wants the longest delay.
const Longest = 1 << 30

// A TimerKind says what a timer is for; the shell knows how long it takes.
type TimerKind uint8

// The kinds of timers.
const (
	// TimerReconnect runs from the end of a stream to the next attempt. Its
	// Attempt counts the streams in a row that ended without a response; 0
	// means that the last one had one.
	TimerReconnect TimerKind = iota + 1
	// TimerAbsent runs from the moment that the request naming a resource was
	// sent. When it fires the resource counts as non-existent.
	TimerAbsent
	// TimerForget runs from the moment that the request without a resource was
	// sent. Until it fires the resource is followed, for a new subscription that
	// a server which hasn't seen the old one end would not answer.
	TimerForget
	// TimerNack delays the answer to a response that was refused just before
	// in the same version for the same reasons. Its Attempt counts from 1.
	TimerNack
	// TimerTTL runs for the TTL of a resource, also without a stream. When it
	// fires the resource is gone.
	TimerTTL
)

// String returns the kind's name, "reconnect" and so on.
func (k TimerKind) String() string {
	return [...]string{"none", "reconnect", "absent", "forget", "nack", "ttl"}[k]
}

// A Timer identifies a timer: there is at most one of each value.
type Timer struct {
	Kind       TimerKind
	Type, Name string // as far as the kind has them
	Server     int    // of TimerReconnect and TimerNack
}

// An Effect is something for the shell to do or to know: one of the types
// below.
type Effect interface{ effect() }

type (
	// Connect asks for a new stream to a server: Connected or Closed must follow.
	Connect struct{ Server int }
	// Disconnect ends what Connect began. Nothing of it may be reported any more.
	Disconnect struct{ Server int }
	// Active says which server counts now, after a fallback or a return from one.
	Active struct{ Server int }
	// Send asks for a request to be sent: Sent or Closed must follow. No other
	// Send to the server comes before.
	Send struct {
		Server  int
		Request Request
	}
	// StartTimer asks for Fired after the time that the shell gives to the
	// timer's kind and attempt, or for TimerTTL after TTL nanoseconds.
	StartTimer struct {
		Timer   Timer
		Attempt int
		TTL     int64
	}
	// StopTimer takes a StartTimer back: Fired must not follow.
	StopTimer struct{ Timer Timer }

	// Changed hands on a valid resource that is new or differs from the last,
	// or that takes the place of an error.
	Changed struct {
		Type, Name string
		Value      any
	}
	// Renewed says that the value handed on last was sent again and is the same. It
	// comes for a [Perishable] value only.
	Renewed struct {
		Type, Name string
		Value      any
	}
	// Invalid says that the newest version of a resource was refused. A value
	// handed on earlier stays in force. Partial is what Decode returned beside
	// the error.
	Invalid struct {
		Type, Name, Reason string
		Partial            any
	}
	// Failed says that the server can't give a resource. A value handed on
	// earlier stays in force.
	Failed struct {
		Type, Name string
		Code       uint32
		Reason     string
	}
	// Gone says that a resource does not exist.
	Gone struct {
		Type, Name string
		Cause      Cause
	}
	// Judged tells of every response of a known type that was taken in. Error
	// is empty if the whole of it was accepted. Repeats counts how often the
	// same version was refused for the same reasons before.
	Judged struct {
		Type, Version, Error string
		Repeats              int
	}
	// Unknown tells, once a type, of a response that nobody understands. It is
	// not answered.
	Unknown struct{ Type string }
	// Unreachable says that a stream to the active server ended, or wasn't opened,
	// without one response, and that no other server takes its place. It comes
	// once per attempt.
	Unreachable struct{ Reason string }
	// Reachable says that a server that was unreachable has answered.
	Reachable struct{}
)

// A Cause says why a resource is Gone.
type Cause uint8

// The causes.
const (
	// Deleted by the server.
	Deleted Cause = iota
	// TimedOut: the server never sent it, or never confirmed what another had.
	TimedOut
	// Expired by its TTL.
	Expired
)

// String returns the cause's name.
func (c Cause) String() string { return [...]string{"deleted", "timed out", "expired"}[c] }

func (Connect) effect()     {}
func (Disconnect) effect()  {}
func (Active) effect()      {}
func (Send) effect()        {}
func (StartTimer) effect()  {}
func (StopTimer) effect()   {}
func (Changed) effect()     {}
func (Renewed) effect()     {}
func (Invalid) effect()     {}
func (Gone) effect()        {}
func (Failed) effect()      {}
func (Judged) effect()      {}
func (Unknown) effect()     {}
func (Unreachable) effect() {}
func (Reachable) effect()   {}

// TypeState is what a Core knows of one type, for dumps.
type TypeState struct {
	URL, Version, Nonce string
	Wildcard            bool
	Resources           []ResourceState // sorted by name
}

// ResourceState is what a Core knows of one resource, for dumps.
type ResourceState struct {
	Name string
	// Subscribed is false for a resource that is only kept for a while.
	Subscribed bool
	// State is "requested", "acked", "nacked", "does_not_exist" or
	// "received_error". Source: envoy.admin.v3.ClientResourceStatus.
	State string
	// Version is that of the value held, empty if none is.
	Version string
	// Error says why the newest version was refused, or could not be given.
	Error string
	// Body has the bytes of the value held, and Refused those of the newest
	// version if it was refused, as far as there is room.
	Body, Refused string
	// Nack is the last refusal, also if a good version has come since; the zero
	// value if none is known.
	Nack Nack
}

// A Nack is the refusal of one version of a resource.
type Nack struct {
	Version, Reason string
	Mark            int64 // of the Response
}
