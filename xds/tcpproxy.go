package xds

//lint:file-ignore SA1019 control planes send what is deprecated, too

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// mostClusters bounds the weighted clusters of a tcp_proxy.
const mostClusters = 4096

// tcpProxy reads a tcp_proxy filter.
func (r *chainReader) tcpProxy(config *anypb.Any, path string) error {
	var m tcpproxyv3.TcpProxy
	if err := unmarshal(config, &m, path); err != nil {
		return err
	}
	path += ".typed_config."
	p := TCPProxy{IdleTimeout: DefaultIdleTimeout, MaxConnectAttempts: 1}
	var err error
	if p.Clusters, err = r.clusters(&m, path); err != nil {
		return err
	}
	if d := m.GetIdleTimeout(); d != nil {
		if d.CheckValid() != nil || d.AsDuration() < 0 {
			return fmt.Errorf("%sidle_timeout: %s: want at least 0s", path, durationText(d))
		}
		p.IdleTimeout = d.AsDuration()
	}
	if n := m.GetMaxConnectAttempts(); n != nil {
		if n.GetValue() == 0 {
			return fmt.Errorf("%smax_connect_attempts: 0: want at least 1", path)
		}
		p.MaxConnectAttempts = int(min(n.GetValue(), math.MaxInt32))
	}
	if d := m.GetMaxDownstreamConnectionDuration(); d != nil {
		if p.MaxDuration, err = positive(d); err != nil {
			return fmt.Errorf("%smax_downstream_connection_duration: %w", path, err)
		}
	}
	if j := m.GetMaxDownstreamConnectionDurationJitterPercentage(); j != nil {
		if p.MaxDurationJitter, err = percent(j); err != nil {
			return fmt.Errorf("%smax_downstream_connection_duration_jitter_percentage: %w", path, err)
		}
	}
	if err := r.hashing(&m, path, &p); err != nil {
		return err
	}
	if p.AccessLogs, err = r.accessLogs(m.GetAccessLog(), path+"access_log"); err != nil {
		return err
	}
	r.sort(r.fields(&m, path, tcpProxyFields))
	r.c.TCPProxy = p
	return nil
}

// clusters reads where the connections go.
func (r *chainReader) clusters(m *tcpproxyv3.TcpProxy, path string) ([]WeightedCluster, error) {
	switch to := m.GetClusterSpecifier().(type) {
	case *tcpproxyv3.TcpProxy_Cluster:
		if to.Cluster == "" {
			return nil, fmt.Errorf("%scluster: empty", path)
		}
		return []WeightedCluster{{to.Cluster, 1}}, nil
	case *tcpproxyv3.TcpProxy_WeightedClusters:
		list := to.WeightedClusters.GetClusters()
		path += "weighted_clusters.clusters"
		if len(list) == 0 || len(list) > mostClusters {
			return nil, fmt.Errorf("%s: %d: want 1 to %d", path, len(list), mostClusters)
		}
		var out []WeightedCluster
		total := uint64(0)
		for i, c := range list {
			path := fmt.Sprintf("%s[%d].", path, i)
			switch {
			case c.GetName() == "":
				return nil, fmt.Errorf("%sname: missing", path)
			case c.GetWeight() == 0:
				return nil, fmt.Errorf("%sweight: 0: want at least 1", path)
			}
			if total += uint64(c.GetWeight()); total > math.MaxUint32 {
				return nil, fmt.Errorf("%sweight: the sum of all weights is above %d", path, uint32(math.MaxUint32))
			}
			r.sort(r.fields(c, path, clusterWeightFields))
			out = append(out, WeightedCluster{c.GetName(), c.GetWeight()})
		}
		return out, nil
	}
	return nil, fmt.Errorf("%scluster: missing: want cluster or weighted_clusters", path)
}

// hashing reads what hash policies choose by.
func (r *chainReader) hashing(m *tcpproxyv3.TcpProxy, path string, p *TCPProxy) error {
	list := m.GetHashPolicy()
	if len(list) > 1 {
		return fmt.Errorf("%shash_policy: %d: want at most 1", path, len(list))
	}
	for _, h := range list {
		switch {
		case h.GetSourceIp() != nil:
			p.HashSourceIP = true
		case h.GetFilterState() != nil:
			r.refuse("%shash_policy[0].filter_state", path)
		default:
			return fmt.Errorf("%shash_policy[0].policy_specifier: missing", path)
		}
	}
	return nil
}

// accessLogs reads access logs. Those that are not to be had are left out and
// listed.
func (r *listenerReader) accessLogs(list []*accesslogv3.AccessLog, path string) (logs []AccessLog, err error) {
	for i, m := range list {
		path := fmt.Sprintf("%s[%d]", path, i)
		typed := path + ".typed_config"
		filter, ok := logFilter(m.GetFilter())
		if !ok { // without it there would be lines that are not wanted
			f := m.GetFilter().ProtoReflect()
			r.ignore("%s.filter.%s: the log is left out", path, f.WhichOneof(f.Descriptor().Oneofs().Get(0)).Name())
			continue
		}
		log := AccessLog{Filter: filter}
		switch typeName(m.GetTypedConfig()) {
		case "envoy.extensions.access_loggers.file.v3.FileAccessLog":
			var c filev3.FileAccessLog
			if err := unmarshal(m.GetTypedConfig(), &c, path); err != nil {
				return nil, err
			}
			if log.Path, ok = r.logPath(c.GetPath(), typed); c.GetPath() == "" {
				return nil, fmt.Errorf("%s.path: missing", typed)
			}
			switch f := c.GetAccessLogFormat().(type) {
			case *filev3.FileAccessLog_Format:
				log.Format = f.Format
			case *filev3.FileAccessLog_JsonFormat:
				log.Format = jsonFormat(f.JsonFormat)
			case *filev3.FileAccessLog_TypedJsonFormat:
				log.Format = jsonFormat(f.TypedJsonFormat)
			case *filev3.FileAccessLog_LogFormat:
				ok = r.logFormat(f.LogFormat, typed+".log_format", &log) && ok
			}
		case "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog":
			var c streamv3.StdoutAccessLog
			if err := unmarshal(m.GetTypedConfig(), &c, path); err != nil {
				return nil, err
			}
			log.Path = "stdout"
			ok = r.logFormat(c.GetLogFormat(), typed+".log_format", &log)
		case "envoy.extensions.access_loggers.stream.v3.StderrAccessLog":
			var c streamv3.StderrAccessLog
			if err := unmarshal(m.GetTypedConfig(), &c, path); err != nil {
				return nil, err
			}
			log.Path = "stderr"
			ok = r.logFormat(c.GetLogFormat(), typed+".log_format", &log)
		default:
			r.ignore("%s %q: the log is left out", path, m.GetName())
			continue
		}
		if ok {
			logs = append(logs, log)
		}
	}
	return logs, nil
}

// logFilter reads the filter of a log, and returns whether it can be had. Runtime keys
// are never set here.
func logFilter(m *accesslogv3.AccessLogFilter) (f LogFilter, ok bool) {
	switch s := m.GetFilterSpecifier().(type) {
	case nil: // none, or one that says nothing
	case *accesslogv3.AccessLogFilter_NotHealthCheckFilter: // there are none among connections
	case *accesslogv3.AccessLogFilter_RuntimeFilter:
		f.Sampled = true
		if f.PerMillion, ok = perMillion(s.RuntimeFilter.GetPercentSampled()); !ok {
			return f, false
		}
	case *accesslogv3.AccessLogFilter_DurationFilter:
		c := s.DurationFilter.GetComparison()
		f.DurationMillis = c.GetValue().GetDefaultValue()
		switch c.GetOp() {
		case accesslogv3.ComparisonFilter_EQ:
			f.DurationOp = "="
		case accesslogv3.ComparisonFilter_GE:
			f.DurationOp = ">="
		case accesslogv3.ComparisonFilter_LE:
			f.DurationOp = "<="
		case accesslogv3.ComparisonFilter_NE:
			f.DurationOp = "!="
		default:
			return f, false
		}
	case *accesslogv3.AccessLogFilter_ResponseFlagFilter:
		f.Flagged, f.Flags = true, strings.Join(s.ResponseFlagFilter.GetFlags(), ",")
	default:
		return f, false
	}
	return f, true
}

// logPath returns the path by the names that access logs have here, and whether
// there can be a log.
func (r *listenerReader) logPath(path, at string) (string, bool) {
	switch path {
	case "/dev/stdout":
		return "stdout", true
	case "/dev/stderr":
		return "stderr", true
	case "/dev/null":
		return "", false
	}
	if !strings.HasPrefix(path, "/") {
		r.ignore("%s.path %q: not absolute, the log is left out", at, path)
		return "", false
	}
	return path, true
}

// logFormat reads a format, and returns whether it can be had.
func (r *listenerReader) logFormat(m *corev3.SubstitutionFormatString, path string, log *AccessLog) bool {
	switch f := m.GetFormat().(type) {
	case *corev3.SubstitutionFormatString_TextFormat:
		log.Format = f.TextFormat
	case *corev3.SubstitutionFormatString_JsonFormat:
		log.Format = jsonFormat(f.JsonFormat)
	case *corev3.SubstitutionFormatString_TextFormatSource:
		switch s := f.TextFormatSource.GetSpecifier().(type) {
		case *corev3.DataSource_InlineString:
			log.Format = s.InlineString
		case *corev3.DataSource_InlineBytes:
			log.Format = string(s.InlineBytes)
		default:
			r.ignore("%s.text_format_source other than inline: the log is left out", path)
			return false
		}
	}
	if m != nil {
		r.fields(m, path+".", map[string]use{
			"text_format": applied, "json_format": applied, "text_format_source": applied,
			"content_type": harmless, "json_format_options": harmless,
		})
	}
	return true
}

// numeric are the operators that always print a number.
var numeric = []string{"%DURATION%", "%BYTES_RECEIVED%", "%BYTES_SENT%", "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"}

// jsonFormat returns a text that prints what a JSON format does, with its keys
// sorted: operators escape what they print as JSON wants it.
func jsonFormat(m *structpb.Struct) string {
	var b strings.Builder
	appendJSON(&b, structpb.NewStructValue(m))
	return b.String()
}

func appendJSON(b *strings.Builder, v *structpb.Value) {
	text := func(s string) {
		quoted, _ := json.Marshal(s) // a string never fails
		b.Write(quoted)
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		b.WriteByte('{')
		for i, key := range slices.Sorted(maps.Keys(k.StructValue.GetFields())) {
			if i > 0 {
				b.WriteByte(',')
			}
			text(strings.ReplaceAll(key, "%", "%%"))
			b.WriteByte(':')
			appendJSON(b, k.StructValue.GetFields()[key])
		}
		b.WriteByte('}')
	case *structpb.Value_ListValue:
		b.WriteByte('[')
		for i, x := range k.ListValue.GetValues() {
			if i > 0 {
				b.WriteByte(',')
			}
			appendJSON(b, x)
		}
		b.WriteByte(']')
	case *structpb.Value_StringValue:
		if slices.Contains(numeric, k.StringValue) {
			b.WriteString(k.StringValue)
		} else {
			text(k.StringValue)
		}
	default:
		plain, err := json.Marshal(v.AsInterface())
		if err != nil { // no number in JSON
			plain = []byte("null")
		}
		b.Write(plain)
	}
}
