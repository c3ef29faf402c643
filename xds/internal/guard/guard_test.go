package guard

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// field is an encoded field of bytes.
func field(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

// Small messages that would be large once decoded are refused before they are, and
// one of as many endpoints as a set may have is not: all of it a thousandth.
func TestLimits(t *testing.T) {
	nested := []byte(nil) // metadata of structs in structs
	for range 60 {
		nested = field(5, field(1, append(field(1, []byte("k")), field(2, nested)...)))
	}
	meta := field(2, field(2, field(3, field(1, append(field(1, []byte("f")), field(2, field(1, field(2, nested)))...)))))
	address := field(1, field(1, append(field(2, []byte("10.0.0.1")), 0x18, 80)))
	if err := Unmarshal(field(2, field(2, meta[:2])), new(endpointv3.ClusterLoadAssignment)); err == nil { // has what is made once made
		t.Error("a message that is cut is taken")
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"endpoints of nothing":        {field(2, bytes.Repeat([]byte{0x12, 0}, 3<<10)), "more than 2097152 elements of lists"},
		"localities of nothing":       {bytes.Repeat([]byte{0x12, 0}, 3<<10), "more than 2097152 elements of lists"},
		"the same message many times": {field(4, bytes.Repeat([]byte{0x1a, 0}, 7<<10)), "more than 6291456 messages in one"},
		"deep":                        {meta, "messages in messages, more than 100 deep"},
		"as many as there may be":     {field(2, bytes.Repeat(field(2, field(1, address)), 1<<10)), ""},
		"junk":                        {[]byte("\xff\xff"), "proto:"},
		"cut":                         {[]byte{0x12, 9, 0x12}, "proto:"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m := new(endpointv3.ClusterLoadAssignment)
		err := unmarshal(tt.data, m, counter{maxElements >> 10, maxMessages >> 10})
		runtime.ReadMemStats(&after)
		switch {
		case tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		case tt.want != "" && after.TotalAlloc-before.TotalAlloc > 100<<10:
			t.Errorf("%s: %d bytes to refuse it", name, after.TotalAlloc-before.TotalAlloc)
		}
	}
}

func TestString(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "\x0a\x03web": "web", "\x0a\x03web\x12\x00\x0a\x01x": "x", "\x0a\x03web\x12\x7f": "web", "\x08\x01": "", "\x0a\x09web": "", "\xff": "",
	} {
		if got := String([]byte(in), 1); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzUnmarshal: what is small is decoded as without limits.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("\x0a\x03web\x12\x02\x12\x00"))
	f.Add(field(2, field(2, field(1, field(1, field(1, field(2, []byte("10.0.0.1"))))))))
	f.Add([]byte("\x12\x7f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 200 {
			return // may be deep
		}
		var got, want endpointv3.ClusterLoadAssignment
		err, wantErr := Unmarshal(data, &got), proto.Unmarshal(data, &want)
		if err == nil && wantErr == nil && !proto.Equal(&got, &want) || (err == nil) != (wantErr == nil) {
			t.Errorf("%v, %v; want %v, %v", &got, err, &want, wantErr)
		}
		if err == nil && String(data, 1) != got.ClusterName {
			t.Errorf("name %q, want %q", String(data, 1), got.ClusterName)
		}
	})
}
