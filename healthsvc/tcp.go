package healthsvc

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"gatehouse.internal/lbcore"
)

// The limits of a TCP probe, in bytes.
const (
	// MaxPayload bounds Send and each block of Receive.
	MaxPayload = 64 << 10
	// MaxReceive bounds what is read in search of the blocks.
	MaxReceive = 1 << 20
)

// MaxBlocks bounds the number of blocks in TCP.Receive.
const MaxBlocks = 64

// TCP connects, writes Send, and reads until every block of Receive has been
// seen in this order; other bytes may come before, between and after them.
// The zero TCP only connects. Source: HealthCheck.TcpHealthCheck.
type TCP struct {
	Transport
	Send    []byte
	Receive [][]byte
}

// Validate reports payloads that are empty blocks or over a limit.
func (p TCP) Validate() error {
	if len(p.Send) > MaxPayload {
		return fmt.Errorf("send: %d bytes: at most %d are allowed", len(p.Send), MaxPayload)
	}
	if len(p.Receive) > MaxBlocks {
		return fmt.Errorf("receive: %d blocks: at most %d are allowed", len(p.Receive), MaxBlocks)
	}
	for i, b := range p.Receive {
		switch {
		case len(b) == 0:
			return fmt.Errorf("receive: block %d is empty: leave it out or give its bytes", i+1)
		case len(b) > MaxPayload:
			return fmt.Errorf("receive: block %d: %d bytes: at most %d are allowed", i+1, len(b), MaxPayload)
		}
	}
	return p.Transport.validate()
}

// Kind returns "tcp".
func (p TCP) Kind() string { return "tcp" }

// Spec returns the canonical text for Key.Spec.
func (p TCP) Spec() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tcp send=%x receive=", p.Send)
	for i, block := range p.Receive {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(hex.EncodeToString(block))
	}
	return b.String() + p.Transport.spec()
}

// String says what is done, without the bytes.
func (p TCP) String() string {
	what := "connect"
	if len(p.Send) > 0 {
		what += fmt.Sprintf(", send %d bytes", len(p.Send))
	}
	if len(p.Receive) > 0 {
		what += fmt.Sprintf(", expect %d blocks", len(p.Receive))
	}
	return p.Transport.with(what)
}

// Probe does what TCP says. Every failure counts towards the threshold.
func (p TCP) Probe(ctx context.Context, addr lbcore.Addr) error {
	if p.plain() && len(p.Send) == 0 && len(p.Receive) == 0 { // by far the most: nothing to interrupt
		return p.connect(ctx, addr)
	}
	c, release, err := p.open(ctx, addr)
	if err != nil {
		return err
	}
	defer release()
	if _, err := c.Write(p.Send); err != nil {
		return reason(ctx, "send", err)
	}
	return receive(ctx, c, p.Receive)
}

// receive reads until it has seen all blocks. It keeps no more of the stream
// than may be the beginning of the block that it looks for; taking the first
// place where a block fits never costs a later block its own.
func receive(ctx context.Context, r io.Reader, blocks [][]byte) error {
	longest := 0
	for _, b := range blocks {
		longest = max(longest, len(b))
	}
	store := make([]byte, longest+4096)
	have, total := store[:0], 0
	for i := 0; i < len(blocks); {
		if at := bytes.Index(have, blocks[i]); at >= 0 {
			have = have[at+len(blocks[i]):]
			i++
			continue
		}
		doing := fmt.Sprintf("receive: block %d of %d not seen in %d bytes", i+1, len(blocks), total)
		if total >= MaxReceive {
			return errors.New(doing)
		}
		keep := min(len(have), len(blocks[i])-1)
		keep = copy(store, have[len(have)-keep:])
		n, err := r.Read(store[keep:])
		have = store[:keep+n]
		if total += n; n == 0 && err != nil {
			return reason(ctx, doing, err)
		}
	}
	return nil
}
