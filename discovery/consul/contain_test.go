package consul

import (
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"gatehouse.internal/internal/contain"
)

// An answer that can't be read without a panic is none.
func TestDecoderPanics(t *testing.T) {
	panics := new(contain.Panics)
	c := &Client{cfg: Config{Panics: panics}}
	_, err := c.contained(func(*api.QueryOptions) (*api.QueryMeta, error) { panic("boom") }, nil)
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Error(err)
	}
	if n := panics.Count(contain.Decoder); n != 1 {
		t.Errorf("%d panics", n)
	}
}
