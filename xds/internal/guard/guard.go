// Package guard decodes protobuf messages of somebody who may mean harm. Two bytes
// can be a message that takes a hundred once decoded, so a message of some
// megabytes could take gigabytes: Unmarshal looks at how many there are first.
//
// # Usage
//
//	err := guard.Unmarshal(body, &m)
//
// # Concurrency
//
// Everything is a pure function.
//
// # Limitations
//
// What is within an Any, or unknown, counts as bytes: whoever decodes it calls
// Unmarshal again.
package guard

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The limits of one message: what lists and maps have in all, what messages there
// are in it, and how deep they lie. An assignment of the most endpoints that a set
// may have, 1<<20, fits. The depth is Envoy's.
const (
	maxElements = 2 << 20
	maxMessages = 6 << 20
	maxDepth    = 100
)

// Unmarshal is proto.Unmarshal with limits.
func Unmarshal(data []byte, m proto.Message) error {
	return unmarshal(data, m, counter{maxElements, maxMessages})
}

func unmarshal(data []byte, m proto.Message, c counter) error {
	if err := c.walk(data, m.ProtoReflect().Descriptor(), 0); err != nil {
		return err
	}
	return proto.Unmarshal(data, m)
}

// String returns the text in a field of an encoded message, as far as it can be
// read: the name of what can't be decoded.
func String(data []byte, field protowire.Number) (text string) {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(num, typ, data[n:])
		if size < 0 {
			break
		}
		if num == field && typ == protowire.BytesType {
			b, _ := protowire.ConsumeBytes(data[n:])
			text = string(b) // the last one counts
		}
		data = data[n+size:]
	}
	return text
}

// counter is what there may be yet.
type counter struct{ elements, messages int }

// walk counts what is in a message. What can't be read it leaves to who decodes it.
func (c *counter) walk(data []byte, d protoreflect.MessageDescriptor, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("messages in messages, more than %d deep", maxDepth)
	}
	fields := d.Fields()
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(num, typ, data)
		if size < 0 {
			return nil
		}
		if fd := fields.ByNumber(num); fd != nil && typ == protowire.BytesType {
			if fd.Cardinality() == protoreflect.Repeated {
				if c.elements--; c.elements < 0 {
					return fmt.Errorf("more than %d elements of lists", maxElements)
				}
			}
			if sub := fd.Message(); sub != nil {
				if c.messages--; c.messages < 0 {
					return fmt.Errorf("more than %d messages in one", maxMessages)
				}
				b, _ := protowire.ConsumeBytes(data)
				if err := c.walk(b, sub, depth+1); err != nil {
					return err
				}
			}
		}
		data = data[size:]
	}
	return nil
}
