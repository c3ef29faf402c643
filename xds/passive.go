package xds

import (
	"slices"
	"strings"

	udpav1 "github.com/cncf/xds/go/udpa/type/v1"
	xdsv3 "github.com/cncf/xds/go/xds/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"gatehouse.internal/xds/internal/guard"
)

// Istio's network filters that leave alone what passes.
const (
	istioStatsType = "stats.PluginConfig"
	// It tells the peer about this side in front of what passes, where both have agreed
	// on its ALPN protocol, and else does nothing. That is not offered here, nor chosen.
	istioExchangeType = "envoy.tcp.metadataexchange.config.MetadataExchange"
)

// passive reports whether a connection is the same without this filter, if the ALPN
// protocol that it returns, if any, is not agreed on.
func passive(config *anypb.Any) (protocol string, ok bool) {
	name, protocol := typeName(config), ""
	var inner interface {
		GetTypeUrl() string
		GetValue() *structpb.Struct
	}
	switch {
	case config.MessageIs(new(udpav1.TypedStruct)):
		var s udpav1.TypedStruct
		if guard.Unmarshal(config.GetValue(), &s) != nil {
			return "", false
		}
		inner = &s
	case config.MessageIs(new(xdsv3.TypedStruct)):
		var s xdsv3.TypedStruct
		if guard.Unmarshal(config.GetValue(), &s) != nil {
			return "", false
		}
		inner = &s
	case name == istioExchangeType:
		protocol = firstText(config.GetValue())
	}
	if inner != nil {
		url := inner.GetTypeUrl()
		name = url[strings.LastIndexByte(url, '/')+1:]
		protocol = inner.GetValue().GetFields()["protocol"].GetStringValue()
	}
	switch name {
	case istioStatsType:
		return "", true
	case istioExchangeType:
		return protocol, protocol != "" // with none it exchanges on connections without ALPN
	}
	return "", false
}

// firstText returns field 1 of a message, a string.
func firstText(b []byte) (text string) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if num == 1 && typ == protowire.BytesType {
			v, n := protowire.ConsumeString(b)
			if n < 0 {
				return ""
			}
			text, b = v, b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return text
}

// exchanges returns the ALPN protocols that filters must not find agreed on.
func exchanges[F interface{ GetTypedConfig() *anypb.Any }](filters []F) (protocols []string) {
	for _, f := range filters {
		if p, ok := passive(f.GetTypedConfig()); ok && p != "" {
			protocols = append(protocols, p)
		}
	}
	return protocols
}

// without returns list without what is in leave.
func without(list, leave []string) []string {
	if len(leave) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(leave, s) })
}
