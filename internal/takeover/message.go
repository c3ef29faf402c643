package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Version is that of the protocol. It changes when an older process could not
// understand a newer one any more; fields that are not known are passed over.
const Version = 1

// MaxSockets is how many sockets are handed at most.
const MaxSockets = 4096

const (
	maxMessage = 64 << 10 // bytes of a line
	maxBatch   = 64       // sockets of a message; the kernel takes 253
	maxText    = 4 << 10  // of a reason
)

// The types of messages.
const (
	typeHello     = "hello"
	typeSockets   = "sockets"
	typeReady     = "ready"
	typeGo        = "go"
	typeAccepting = "accepting"
	typeDone      = "done"
	typeRefused   = "refused"
)

// message is one line.
type message struct {
	Type     string   `json:"type"`
	Version  int      `json:"version,omitempty"`   // of hello
	Build    string   `json:"build,omitempty"`     // of hello
	StateDir string   `json:"state_dir,omitempty"` // of hello
	Sockets  []Socket `json:"sockets,omitempty"`   // of sockets
	More     bool     `json:"more,omitempty"`      // of sockets: another message of them follows
	Text     string   `json:"text,omitempty"`      // of refused
}

// Kind says what a Socket is for.
type Kind string

// The kinds.
const (
	KindListener Kind = "listener"
	KindAdmin    Kind = "admin"
	KindTakeover Kind = "takeover" // where the next process asks
)

// Hello is what the taker says of itself.
type Hello struct {
	Build string // the release, for the log
	// StateDir is the directory of its state, empty for none. The giver lets go of it
	// if it has the same.
	StateDir string
	// PID is the taker's process id, from the kernel. Accept sets it.
	PID int
}

// Refusal is the reason that the other side gave.
type Refusal struct{ Text string }

// Error returns it.
func (r *Refusal) Error() string { return "refused: " + r.Text }

var errTooLong = fmt.Errorf("a message of more than %d bytes", maxMessage)

// decode reads a line.
func decode(line []byte) (m message, err error) {
	if len(line) > maxMessage {
		return m, errTooLong
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("a message that can't be read: %w", err)
	}
	switch m.Type {
	case typeHello:
	case typeSockets:
		if len(m.Sockets) == 0 && m.More || len(m.Sockets) > maxBatch {
			return message{}, fmt.Errorf("a message of %d sockets, want 1 to %d", len(m.Sockets), maxBatch)
		}
		for _, s := range m.Sockets {
			if s.Address == "" || s.Kind == KindListener && s.Name == "" {
				return message{}, errors.New("a socket without a name or address")
			}
		}
	case typeReady, typeGo, typeAccepting, typeDone:
	case typeRefused:
		m.Text = m.Text[:min(len(m.Text), maxText)]
	default:
		return message{}, fmt.Errorf("a message of the type %.20q", m.Type)
	}
	return m, nil
}

// encode returns the line of m.
func encode(m message) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if b = append(b, '\n'); len(b) > maxMessage {
		return nil, errTooLong
	}
	return b, nil
}
