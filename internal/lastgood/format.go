package lastgood

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Version is that of the format. A file of another one is not read.
const Version = 1

// header is the first line of a file.
type header struct {
	Version   int       `json:"version"`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Confirmed time.Time `json:"confirmed"` // until when it is known to be right
}

const sumLen = 2*sha256.Size + 2 // with the newlines around it

// encode returns the content of a file.
func encode(k Key, confirmed time.Time, payload []byte) ([]byte, error) {
	head, err := json.Marshal(header{Version, k.Kind, k.Name, confirmed.UTC()})
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(head)+1+len(payload)+sumLen)
	b = append(append(append(b, head...), '\n'), payload...)
	sum := sha256.Sum256(b)
	b = append(hex.AppendEncode(append(b, '\n'), sum[:]), '\n')
	return b, nil
}

// decode returns what a file has of k. The error says what is wrong with it.
func decode(k Key, b []byte) (payload []byte, confirmed time.Time, err error) {
	body := len(b) - sumLen
	if body < 0 {
		return nil, confirmed, fmt.Errorf("cut off: it has %d bytes", len(b))
	}
	sum := sha256.Sum256(b[:body])
	if want := hex.AppendEncode([]byte{'\n'}, sum[:]); !bytes.Equal(append(want, '\n'), b[body:]) {
		return nil, confirmed, errors.New("the checksum does not match: it was cut off or altered")
	}
	line, payload, ok := bytes.Cut(b[:body], []byte("\n"))
	var h header
	if !ok {
		return nil, confirmed, errors.New("it has no header")
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, confirmed, fmt.Errorf("the header can't be read: %w", err)
	}
	switch {
	case h.Version != Version:
		return nil, confirmed, fmt.Errorf("it is of version %d of the format: want %d", h.Version, Version)
	case h.Kind != k.Kind || h.Name != k.Name:
		return nil, confirmed, fmt.Errorf("it is of %s %q", h.Kind, h.Name)
	}
	return payload, h.Confirmed, nil
}

// fileName returns the name of k's file. The name is hashed, since it may hold
// anything.
func (k Key) fileName() string {
	sum := sha256.Sum256([]byte(k.Kind + "\x00" + k.Name))
	return k.Kind + "-" + hex.EncodeToString(sum[:16]) + suffix
}
