package xds

import (
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse.internal/healthsvc/outlier"
)

func outliers(o *clusterv3.OutlierDetection) mutate {
	return func(c *clusterv3.Cluster) { c.OutlierDetection = o }
}

// every returns the message with each field set to a value of its own.
func every(split bool) *clusterv3.OutlierDetection {
	return &clusterv3.OutlierDetection{
		Consecutive_5Xx: u32(1), Interval: durationpb.New(2 * time.Second), BaseEjectionTime: durationpb.New(3 * time.Second),
		MaxEjectionPercent: u32(4), EnforcingConsecutive_5Xx: u32(5), EnforcingSuccessRate: u32(6), SuccessRateMinimumHosts: u32(7),
		SuccessRateRequestVolume: u32(8), SuccessRateStdevFactor: u32(9), ConsecutiveGatewayFailure: u32(10),
		EnforcingConsecutiveGatewayFailure: u32(11), SplitExternalLocalOriginErrors: split, ConsecutiveLocalOriginFailure: u32(13),
		EnforcingConsecutiveLocalOriginFailure: u32(14), EnforcingLocalOriginSuccessRate: u32(15), FailurePercentageThreshold: u32(16),
		EnforcingFailurePercentage: u32(17), EnforcingFailurePercentageLocalOrigin: u32(18), FailurePercentageMinimumHosts: u32(19),
		FailurePercentageRequestVolume: u32(20), MaxEjectionTime: durationpb.New(21 * time.Second), MaxEjectionTimeJitter: durationpb.New(22 * time.Second),
		SuccessfulActiveHealthCheckUnejectHost: wrapperspb.Bool(false), AlwaysEjectOneHost: wrapperspb.Bool(true),
		Monitors: []*corev3.TypedExtensionConfig{{Name: "m"}}, DetectDegradedHosts: wrapperspb.Bool(true),
	}
}

func TestDecodeOutlierDetection(t *testing.T) {
	all := outlier.Config{
		Enabled: true, Interval: 2 * time.Second, BaseEjectionTime: 3 * time.Second, MaxEjectionTime: 21 * time.Second, MaxEjectionTimeJitter: 22 * time.Second,
		MaxEjectionPercent: 4, AlwaysEjectOneHost: true,
		Consecutive5xx: 1, EnforcingConsecutive5xx: 5, ConsecutiveGatewayFailure: 10, EnforcingConsecutiveGatewayFailure: 11,
		ConsecutiveLocalOriginFailure: 13, EnforcingConsecutiveLocalOriginFailure: 14,
		SuccessRateMinimumHosts: 7, SuccessRateRequestVolume: 8, SuccessRateStdevFactor: 9, EnforcingSuccessRate: 6, EnforcingLocalOriginSuccessRate: 15,
		FailurePercentageThreshold: 16, FailurePercentageMinimumHosts: 19, FailurePercentageRequestVolume: 20,
		EnforcingFailurePercentage: 17, EnforcingFailurePercentageLocalOrigin: 18,
	}
	split := all
	split.SplitExternalLocalOriginErrors = true
	with := func(change func(*outlier.Config)) outlier.Config {
		c := outlier.Default()
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name    string
		in      *clusterv3.OutlierDetection
		want    outlier.Config
		ignored string // after outlier_detection.
	}{
		{"none", nil, outlier.Config{}, ""},
		{"nothing said", &clusterv3.OutlierDetection{}, outlier.Default(), ""},
		{"everything", every(false), all, "consecutive_local_origin_failure enforcing_consecutive_local_origin_failure " +
			"enforcing_failure_percentage_local_origin enforcing_local_origin_success_rate monitors"},
		{"everything, split", every(true), split, "consecutive_5xx consecutive_gateway_failure enforcing_consecutive_5xx " +
			"enforcing_consecutive_gateway_failure enforcing_failure_percentage enforcing_success_rate monitors"},
		{"a base above 300s", &clusterv3.OutlierDetection{BaseEjectionTime: durationpb.New(time.Hour)},
			with(func(c *outlier.Config) { c.BaseEjectionTime = time.Hour }), ""},
		{"an interval below what is possible", &clusterv3.OutlierDetection{Interval: durationpb.New(1)},
			with(func(c *outlier.Config) { c.Interval = time.Millisecond }), ""},
	} {
		_, v, err := decodeCluster(marshal(t, edsCluster("web", outliers(tt.in))))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		c := v.(*Cluster)
		if d := cmp.Diff(tt.want, c.Outlier); d != "" || c.Unsupported != "" {
			t.Errorf("%s: unsupported %q (-want +got):\n%s", tt.name, c.Unsupported, d)
		}
		var want []string
		for _, f := range strings.Fields(tt.ignored) {
			want = append(want, "outlier_detection."+f)
		}
		if d := cmp.Diff(want, c.Ignored); d != "" {
			t.Errorf("%s: ignored (-want +got):\n%s", tt.name, d)
		}
	}
	unset := every(true).ProtoReflect()
	fields := unset.Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !unset.Has(f) {
			t.Errorf("the test leaves out %s", f.Name())
		}
	}
}

func TestDecodeOutlierDetectionInvalid(t *testing.T) {
	for _, tt := range []struct {
		in   *clusterv3.OutlierDetection
		want string
	}{
		{&clusterv3.OutlierDetection{Interval: durationpb.New(0)}, "interval: 0s: want more than 0s"},
		{&clusterv3.OutlierDetection{Interval: durationpb.New(-1)}, "interval: -1ns: want at least 0s"},
		{&clusterv3.OutlierDetection{BaseEjectionTime: durationpb.New(0)}, "base_ejection_time: 0s: want more than 0s"},
		{&clusterv3.OutlierDetection{MaxEjectionTime: durationpb.New(0)}, "max_ejection_time: 0s: want more than 0s"},
		{&clusterv3.OutlierDetection{MaxEjectionTime: durationpb.New(time.Second)}, "max_ejection_time: 1s: want at least base_ejection_time, 30s"},
		{&clusterv3.OutlierDetection{MaxEjectionTimeJitter: durationpb.New(-time.Second)}, "max_ejection_time_jitter: -1s: want at least 0s"},
		{&clusterv3.OutlierDetection{Interval: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "interval: "},
	} {
		_, _, err := decodeCluster(marshal(t, edsCluster("web", outliers(tt.in))))
		if err == nil || !strings.HasPrefix(err.Error(), "outlier_detection."+tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	// Every percentage is one, and no other number is.
	fields := new(clusterv3.OutlierDetection).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil || f.Message().FullName() != "google.protobuf.UInt32Value" {
			continue
		}
		o := new(clusterv3.OutlierDetection)
		o.ProtoReflect().Set(f, protoreflect.ValueOfMessage(u32(101).ProtoReflect()))
		_, _, err := decodeCluster(marshal(t, edsCluster("web", outliers(o))))
		name := string(f.Name())
		percent := strings.HasPrefix(name, "enforcing_") || name == "max_ejection_percent" || name == "failure_percentage_threshold"
		switch {
		case percent && (err == nil || err.Error() != "outlier_detection."+name+": 101: want 0 to 100"):
			t.Errorf("%s: %v", name, err)
		case !percent && err != nil:
			t.Errorf("%s: %v", name, err)
		}
	}
}
