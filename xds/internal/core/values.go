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

// A Request is one message to the server, in plain values.
// Source: envoy.service.discovery.v3.DiscoveryRequest.
type Request struct {
	Type    string
	Version string // the last version accepted
	Nonce   string // of the last response on this stream
	// Names is sorted and complete. Empty means everything, if it is the first
	// list of its type on the stream, and nothing later on.
	Names []string
	// Node says that the request is the stream's first and must carry the node.
	Node bool
	// Error makes the request a NACK. It is never empty in one.
	Error string
}

// A Resource is one resource of a Response, not yet decoded.
type Resource struct {
	Type string
	Body []byte
}

// A Response is one message from the server, in plain values.
// Source: envoy.service.discovery.v3.DiscoveryResponse.
type Response struct {
	Type, Version, Nonce string
	Resources            []Resource
}

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
)

// String returns the kind's name, "reconnect" and so on.
func (k TimerKind) String() string {
	return [...]string{"none", "reconnect", "absent", "forget", "nack"}[k]
}

// A Timer identifies a timer: there is at most one of each value.
type Timer struct {
	Kind       TimerKind
	Type, Name string // as far as the kind has them
}

// An Effect is something for the shell to do or to know: one of the types
// below.
type Effect interface{ effect() }

type (
	// Connect asks for a new stream: Connected or Closed must follow.
	Connect struct{}
	// Send asks for a request to be sent: Sent or Closed must follow. No other
	// Send comes before.
	Send struct{ Request Request }
	// StartTimer asks for Fired after the time that the shell gives to the
	// timer's kind and attempt.
	StartTimer struct {
		Timer   Timer
		Attempt int
	}
	// StopTimer takes a StartTimer back: Fired must not follow.
	StopTimer struct{ Timer Timer }

	// Changed hands on a valid resource that is new or differs from the last,
	// or that takes the place of an error.
	Changed struct {
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
	// Gone says that a resource does not exist: the server deleted it, or, if
	// Timeout is set, never sent it.
	Gone struct {
		Type, Name string
		Timeout    bool
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
	// Unreachable says that a stream ended, or wasn't opened, without one
	// response. It comes once per attempt.
	Unreachable struct{ Reason string }
	// Reachable says that a server that was unreachable has answered.
	Reachable struct{}
)

func (Connect) effect()     {}
func (Send) effect()        {}
func (StartTimer) effect()  {}
func (StopTimer) effect()   {}
func (Changed) effect()     {}
func (Invalid) effect()     {}
func (Gone) effect()        {}
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
	// State is "requested", "acked", "nacked" or "does_not_exist".
	// Source: envoy.admin.v3.ClientResourceStatus.
	State string
	// Version is that of the value held, empty if none is.
	Version string
	// Error says why the newest version was refused.
	Error string
}
