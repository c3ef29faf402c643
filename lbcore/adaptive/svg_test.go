package adaptive

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/adaptive.svg anew")

// picture is what is drawn: picks per endpoint over time, in windows of 100.
const (
	window  = 100
	windows = 160
	left    = 44 // of the plot
	top     = 40
	stepX   = 5 // a window
	stepY   = 3 // a pick
	width   = windows * stepX
	height  = window * stepY
)

// colours are those of the endpoints; they can be told apart by anybody.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7"}

// TestPicture draws how picks follow latencies, in docs/adaptive.svg and among
// the artifacts of the test. Run it with -update if it is meant to change.
func TestPicture(t *testing.T) {
	events := []struct {
		at   int
		text string
	}{
		{40, "a: 400 ms"}, {60, "a: 1 ms again"}, {80, "d joins at 2 ms"}, {120, "b fails"}, {135, "b is back"},
	}
	w := newWorld(t, nil).span(3)
	lines := make([]bytes.Buffer, 4)
	for at := range windows {
		if at == 80 {
			w.span(4)
		}
		latency := func(i int) int {
			switch {
			case i == 0 && at >= 40 && at < 60:
				return 400_000
			case i == 1 && at >= 120 && at < 135:
				return -1
			}
			l := []int{1000, 5000, 25_000, 2000}[i]
			return l*9/10 + w.rng.IntN(l/5)
		}
		picks := make([]int, 4)
		for range window {
			i := w.s.Pick()
			picks[i]++
			if l := latency(i); l < 0 {
				Failed(w.in.Members[i])
			} else {
				w.cfg.Observe(w.in.Members[i], uint64(l))
			}
		}
		for i := range w.s.Len() {
			fmt.Fprintf(&lines[i], "%d,%d ", left+at*stepX, top+height-picks[i]*stepY)
		}
	}

	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`, left+width+16, top+height+44)
	p(`<title>adaptive: picks per endpoint over time</title>`)
	p(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	for share := 0; share <= window; share += 25 {
		y := top + height - share*stepY
		p(`<path d="M%d %dH%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end">%d %%</text>`, left, y, left+width, left-6, y+4, share)
	}
	for at := 0; at < windows; at += 40 {
		p(`<text x="%d" y="%d">%d picks</text>`, left+at*stepX, top+height+16, at*window)
	}
	for _, e := range events {
		x := left + e.at*stepX
		p(`<path d="M%d %dV%d" stroke="#999" stroke-dasharray="3 3"/><text x="%d" y="%d" fill="#555">%s</text>`, x, top-8, top+height, x+3, top-2, e.text)
	}
	for i, text := range []string{"a, 1 ms", "b, 5 ms", "c, 25 ms", "d, 2 ms"} {
		p(`<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`, colours[i], bytes.TrimSpace(lines[i].Bytes()))
		p(`<path d="M%d %dh20" stroke="%s" stroke-width="3"/><text x="%d" y="%d">%s</text>`, left+i*120, top+height+32, colours[i], left+i*120+26, top+height+36, text)
	}
	p(`</svg>`)

	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "adaptive.svg"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	const kept = "../../docs/adaptive.svg"
	if *update {
		if err := os.WriteFile(kept, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(kept); err != nil || !bytes.Equal(old, b.Bytes()) {
		t.Errorf("docs/adaptive.svg is not what is drawn now (%v): run go test ./lbcore/adaptive -run Picture -update and look at it", err)
	}
}
