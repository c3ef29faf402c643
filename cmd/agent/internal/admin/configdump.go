package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"gatehouse.internal/cmd/agent/internal/configdump"
)

// clientStatusPath is what the methods of CSDS are below.
const clientStatusPath = "/envoy.service.status.v3.ClientStatusDiscoveryService/"

// The limits of CSDS: a request has a few node matchers at most.
const (
	maxStatusRequest = 64 << 10
	maxStatusStreams = 16
)

// clientStatus answers CSDS. Streams may be open for as long as their clients want,
// and so there is a limit to their number.
func clientStatus(d *configdump.Dumper) http.Handler {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxStatusRequest))
	statusv3.RegisterClientStatusDiscoveryServiceServer(s, d)
	open := make(chan struct{}, maxStatusStreams)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case open <- struct{}{}:
			defer func() { <-open }()
		default:
			http.Error(w, fmt.Sprintf("%d streams are open already", maxStatusStreams), http.StatusServiceUnavailable)
			return
		}
		c := http.NewResponseController(w) // an error is that of HTTP/1, which gRPC refuses
		c.SetReadDeadline(time.Time{})
		c.SetWriteDeadline(time.Time{})
		s.ServeHTTP(w, r)
	})
}

// configDump answers with {"configs": […]}, each with its type as "@type", one request
// after the other: a dump may be large.
func configDump(d *configdump.Dumper) http.HandlerFunc {
	turn := make(chan struct{}, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		q := configdump.Query{IncludeEDS: query.Has("include_eds"), Resource: query.Get("resource")}
		for key := range query {
			switch key {
			case "include_eds", "resource", "mask", "name_regex", "format":
			default:
				http.Error(w, fmt.Sprintf("%q is not supported: want include_eds, resource, name_regex or mask", key), http.StatusBadRequest)
				return
			}
		}
		if format := query.Get("format"); format != "" && format != "json" {
			http.Error(w, fmt.Sprintf("format %q: want json", format), http.StatusBadRequest)
			return
		}
		if pattern := query.Get("name_regex"); pattern != "" {
			re, err := regexp.Compile("^(?:" + pattern + ")$")
			if err != nil {
				http.Error(w, "name_regex: "+err.Error(), http.StatusBadRequest)
				return
			}
			q.Name = re
		}
		mask, err := parseMask(query.Get("mask"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		messages, err := d.Configs(q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound) // as Envoy
			return
		}
		configs := make([]any, 0, len(messages))
		for _, m := range messages {
			a, err := anypb.New(m)
			if err == nil {
				var config any
				if config, err = decoded(a); err == nil {
					configs = append(configs, mask.of(config))
				}
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		writeJSON(w, map[string]any{"configs": configs})
	}
}

// decoded returns a message as encoding/json has it, with the field names of the
// protos.
func decoded(a *anypb.Any) (v any, err error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(a)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}

// A fieldMask is a tree of field names; nil is everything below.
// Source: google.protobuf.FieldMask.
type fieldMask map[string]fieldMask

// maxMask bounds the text of a mask.
const maxMask = 4096

// parseMask reads paths with commas between them. Empty is everything.
func parseMask(text string) (fieldMask, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxMask {
		return nil, fmt.Errorf("mask: more than %d bytes", maxMask)
	}
	root := make(fieldMask)
	for path := range strings.SplitSeq(text, ",") {
		at := root
		names := strings.Split(strings.TrimSpace(path), ".")
		for i, name := range names {
			if name == "" {
				return nil, fmt.Errorf("mask %q: an empty name in the path %q", text, path)
			}
			next, there := at[name]
			switch {
			case there && next == nil: // all of it is wanted
			case i == len(names)-1:
				at[name] = nil
			case !there:
				next = make(fieldMask)
				at[name] = next
			}
			if next == nil {
				break
			}
			at = next
		}
	}
	return root, nil
}

// of returns what the mask leaves of v: of a list, of each of its elements. The types
// of messages stay.
func (m fieldMask) of(v any) any {
	if m == nil {
		return v
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = m.of(v[i])
		}
	case map[string]any:
		for name := range v {
			if sub, wanted := m[name]; wanted {
				v[name] = sub.of(v[name])
			} else if name != "@type" {
				delete(v, name)
			}
		}
	}
	return v
}
