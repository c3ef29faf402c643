package discovery

import (
	"context"

	"gatehouse.internal/lbcore"
)

type static struct{ set lbcore.Set }

// Static returns the Source that knows set and nothing else. It may be watched
// by several at a time.
func Static(set lbcore.Set) Source { return static{set} }

func (s static) Watch(ctx context.Context, sink Sink) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sink.Replace(s.set)
	<-ctx.Done()
	return ctx.Err()
}
