package discovery

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"gatehouse.internal/lbcore"
)

// maxNamed is how many dropped addresses one warning names.
const maxNamed = 10

// Duplicates counts and warns of the endpoints that a source left out because
// their address was in the same answer already. Every source that can meet
// them takes a *Duplicates, one for each cluster; nil is allowed and ignores
// them. Its methods may be called from anywhere.
type Duplicates struct {
	// Logger gets one warning when an answer's duplicates differ from those of
	// the answer before. It should carry the cluster. Nil means no log. Set it
	// before first use.
	Logger *slog.Logger

	total atomic.Uint64
	mu    sync.Mutex
	last  []lbcore.Dropped
}

// Note takes what lbcore.NewSet dropped from one answer. Call it once for each
// answer that is reported, also when nothing was dropped.
func (d *Duplicates) Note(dropped []lbcore.Dropped) {
	if d == nil {
		return
	}
	d.total.Add(uint64(len(dropped)))
	d.mu.Lock()
	same := slices.Equal(d.last, dropped)
	d.last = dropped
	d.mu.Unlock()
	if same || len(dropped) == 0 || d.Logger == nil {
		return
	}
	var named []string
	for _, x := range dropped[:min(len(dropped), maxNamed)] {
		named = append(named, x.Endpoint.Addr.String())
	}
	if more := len(dropped) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	d.Logger.Warn("duplicate addresses, the first of each is kept", "dropped", len(dropped), "endpoints", named)
}

// Total returns how many endpoints were dropped so far, over all answers.
func (d *Duplicates) Total() uint64 {
	if d == nil {
		return 0
	}
	return d.total.Load()
}
