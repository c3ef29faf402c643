package xds

import (
	"strings"
	"testing"

	"gatehouse.internal/internal/contain"
)

// A resource whose decoder panics is refused, as one is that is wrong.
func TestDecoderPanics(t *testing.T) {
	panics := new(contain.Panics)
	decode := decoder(func([]byte) (string, any, error) { panic("boom") }, panics)
	if _, v, err := decode(nil); err == nil || !strings.Contains(err.Error(), "boom") || v != nil || panics.Count(contain.Decoder) != 1 {
		t.Errorf("%v, %v, %d", v, err, panics.Count(contain.Decoder))
	}
}
