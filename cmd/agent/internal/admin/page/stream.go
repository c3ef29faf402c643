package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// The limits of streams.
const (
	maxStreams = 8
	// every is the time between two looks at the rows, at least. A look may take
	// 1/lookShare of the time, and a stream bytesPerSecond in the mean.
	every          = time.Second
	lookShare      = 20
	bytesPerSecond = 256 << 10
	// maxEvent is what an event has, but for one row more.
	maxEvent = 64 << 10
	// writeWithin bounds the wait for a reader of an event.
	writeWithin = 10 * time.Second
)

var zeroTime time.Time

// Rows are what the page shows, by name. The kind of a row is what stands before
// the first bar of its name, and rows come in the order of their names.
type Rows map[string]json.RawMessage

// Set puts v there as JSON. v must be something that can be.
func (rows Rows) Set(name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("page: row %s: %v", name, err))
	}
	rows[name] = text
}

// event is one message of a stream.
type event struct {
	Set  map[string]json.RawMessage `json:"set,omitempty"`
	Gone []string                   `json:"gone,omitempty"`
	More bool                       `json:"more,omitempty"` // of the same moment
}

// Events answers with a stream of what changes, the whole first, until the client
// goes or the server ends. ?cluster= is whose details are wanted.
func (p *Page) Events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.open <- struct{}{}:
		defer func() { <-p.open }()
	default:
		http.Error(w, fmt.Sprintf("%d pages look already", maxStreams), http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	c := http.NewResponseController(w)
	c.SetReadDeadline(zeroTime) // an error is that of a writer without deadlines
	cluster := r.URL.Query().Get("cluster")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sent := (Rows)(nil); ; {
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
		select {
		case p.turn <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		began := time.Now()
		rows := p.rows(cluster)
		took := time.Since(began)
		<-p.turn
		n := 0
		for e := range changes(sent, rows) {
			text, _ := json.Marshal(e) // rows are JSON already
			c.SetWriteDeadline(time.Now().Add(writeWithin))
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
				return
			}
			if c.Flush() != nil {
				return
			}
			n += len(text)
		}
		sent = rows
		timer.Reset(pause(took, n))
	}
}

// pause returns how long to wait after a look that took so long and n bytes.
func pause(took time.Duration, n int) time.Duration {
	return max(every, lookShare*took, time.Duration(n)*time.Second/bytesPerSecond)
}

func (p *Page) rows(cluster string) Rows {
	rows := p.cfg.Rows(cluster)
	if p.cfg.Log != nil {
		p.cfg.Log.add(rows)
	}
	return rows
}

// changes yields what makes rows of before those of now, in events of a bounded
// size.
func changes(before, now Rows) func(yield func(event) bool) {
	return func(yield func(event) bool) {
		e, size := event{Set: make(map[string]json.RawMessage)}, 0
		for name := range before {
			if _, there := now[name]; !there {
				e.Gone = append(e.Gone, name)
			}
		}
		slices.Sort(e.Gone)
		for _, name := range slices.Sorted(maps.Keys(now)) {
			row := now[name]
			if old, there := before[name]; there && bytes.Equal(old, row) {
				continue
			}
			if size > maxEvent {
				e.More = true
				if !yield(e) {
					return
				}
				e, size = event{Set: make(map[string]json.RawMessage)}, 0
			}
			e.Set[name] = row
			size += len(name) + len(row)
		}
		if len(e.Set)+len(e.Gone) > 0 {
			yield(e)
		}
	}
}
