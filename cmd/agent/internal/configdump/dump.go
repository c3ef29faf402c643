package configdump

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// Config says what a Dumper tells of. Only Node.ID and Started are required.
type Config struct {
	// Node, UserAgentName and Version are what a control plane is told.
	Node                   xds.Node
	UserAgentName, Version string
	// Servers are the management servers, and Clusters and Listeners say that they
	// are asked for these.
	Servers             []xds.Server
	Clusters, Listeners bool
	// Admin is where the admin interface listens; the zero value is not shown.
	Admin lbcore.Addr
	// Static are the clusters of the configuration, which is in force since
	// Started.
	Static  []config.Cluster
	Started time.Time
	// Status returns what is known of the control plane; nil without one.
	Status func() xds.Status
	// Warming returns the names of clusters that don't serve yet, or whose newest
	// settings don't. Nil is none.
	Warming func() []string
}

// Dumper makes dumps. New makes it.
type Dumper struct{ now func() Config }

// New returns a Dumper, which asks now, for each dump, what there is to tell.
func New(now func() Config) *Dumper { return &Dumper{now} }

// snapshot is what one dump tells of.
type snapshot struct{ cfg Config }

// Query says what of a dump is wanted. The zero value is all but endpoints.
// Source: the parameters of Envoy's /config_dump.
type Query struct {
	// IncludeEDS adds the endpoints.
	IncludeEDS bool
	// Resource is the name of a repeated field of one of the dumps, as
	// "dynamic_active_clusters": its elements are what is wanted.
	Resource string
	// Name, if not nil, leaves out what has other names.
	Name *regexp.Regexp
}

// Resources are the values of Query.Resource.
var Resources = []string{
	"static_clusters", "dynamic_active_clusters", "dynamic_warming_clusters",
	"static_endpoint_configs", "dynamic_endpoint_configs", "dynamic_listeners",
	"dynamic_active_secrets", "dynamic_warming_secrets",
}

// Configs returns an envoy.admin.v3.BootstrapConfigDump, ClustersConfigDump,
// ListenersConfigDump, SecretsConfigDump and, if that is asked for, EndpointsConfigDump;
// or the elements of Query.Resource, of which an error says that there is no such
// field. What it returns is the caller's.
func (x *Dumper) Configs(q Query) ([]proto.Message, error) {
	d := snapshot{x.now()}
	var st xds.Status
	if d.cfg.Status != nil {
		st = d.cfg.Status()
	}
	clusters, endpoints, listeners, secrets := d.clusters(st, q), d.endpoints(st, q), d.listeners(st, q), d.secrets(st, q)
	var out []proto.Message
	switch q.Resource {
	case "":
		out = append(out, &adminv3.BootstrapConfigDump{Bootstrap: d.bootstrap(), LastUpdated: stamp(d.cfg.Started)}, clusters, listeners, secrets)
		if q.IncludeEDS {
			out = append(out, endpoints)
		}
	case "static_clusters":
		out = messages(clusters.StaticClusters)
	case "dynamic_active_clusters":
		out = messages(clusters.DynamicActiveClusters)
	case "dynamic_warming_clusters":
		out = messages(clusters.DynamicWarmingClusters)
	case "static_endpoint_configs":
		out = messages(endpoints.StaticEndpointConfigs)
	case "dynamic_endpoint_configs":
		out = messages(endpoints.DynamicEndpointConfigs)
	case "dynamic_listeners":
		out = messages(listeners.DynamicListeners)
	case "dynamic_active_secrets":
		out = messages(secrets.DynamicActiveSecrets)
	case "dynamic_warming_secrets":
		out = messages(secrets.DynamicWarmingSecrets)
	default:
		return nil, fmt.Errorf("resource %q: want one of %s", q.Resource, strings.Join(Resources, ", "))
	}
	for _, m := range out {
		redact(m)
	}
	return out, nil
}

func messages[M proto.Message](all []M) (out []proto.Message) {
	for _, m := range all {
		out = append(out, m)
	}
	return out
}

func (q Query) wants(name string) bool { return q.Name == nil || q.Name.MatchString(name) }

// clusters tells of CDS and of the clusters of the files. One that was never valid is
// among the active ones, with no more than the error.
func (d snapshot) clusters(st xds.Status, q Query) *adminv3.ClustersConfigDump {
	out := new(adminv3.ClustersConfigDump)
	for _, c := range d.cfg.Static {
		if q.wants(c.Name) {
			out.StaticClusters = append(out.StaticClusters, &adminv3.ClustersConfigDump_StaticCluster{
				Cluster: packed(staticCluster(c)), LastUpdated: stamp(d.cfg.Started),
			})
		}
	}
	t := ofType(st, xds.ClusterType)
	out.VersionInfo = t.Version
	var warming []string
	if d.cfg.Warming != nil {
		warming = d.cfg.Warming()
	}
	for _, r := range t.Resources {
		if !q.wants(r.Name) {
			continue
		}
		c := &adminv3.ClustersConfigDump_DynamicCluster{
			VersionInfo: r.Version, Cluster: inForce(t, r), LastUpdated: stamp(r.Updated),
			ErrorState: errorState(t, r), ClientStatus: clientStatus(r),
		}
		if slices.Contains(warming, r.Name) {
			out.DynamicWarmingClusters = append(out.DynamicWarmingClusters, c)
		} else {
			out.DynamicActiveClusters = append(out.DynamicActiveClusters, c)
		}
	}
	return out
}

// endpoints tells of EDS and of what the clusters of the files list.
func (d snapshot) endpoints(st xds.Status, q Query) *adminv3.EndpointsConfigDump {
	out := new(adminv3.EndpointsConfigDump)
	for _, c := range d.cfg.Static {
		if a := staticAssignment(c); a != nil && q.wants(c.Name) {
			out.StaticEndpointConfigs = append(out.StaticEndpointConfigs, &adminv3.EndpointsConfigDump_StaticEndpointConfig{
				EndpointConfig: packed(a), LastUpdated: stamp(d.cfg.Started),
			})
		}
	}
	t := ofType(st, xds.AssignmentType)
	for _, r := range t.Resources {
		if q.wants(r.Name) {
			out.DynamicEndpointConfigs = append(out.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{
				VersionInfo: r.Version, EndpointConfig: inForce(t, r), LastUpdated: stamp(r.Updated),
				ErrorState: errorState(t, r), ClientStatus: clientStatus(r),
			})
		}
	}
	return out
}

// listeners tells of LDS, not of the listeners of the files. One that was never valid
// has no active state.
func (d snapshot) listeners(st xds.Status, q Query) *adminv3.ListenersConfigDump {
	t := ofType(st, xds.ListenerType)
	out := &adminv3.ListenersConfigDump{VersionInfo: t.Version}
	for _, r := range t.Resources {
		if !q.wants(r.Name) {
			continue
		}
		l := &adminv3.ListenersConfigDump_DynamicListener{Name: r.Name, ErrorState: errorState(t, r), ClientStatus: clientStatus(r)}
		if r.Body != "" {
			l.ActiveState = &adminv3.ListenersConfigDump_DynamicListenerState{
				VersionInfo: r.Version, Listener: inForce(t, r), LastUpdated: stamp(r.Updated),
			}
		}
		out.DynamicListeners = append(out.DynamicListeners, l)
	}
	return out
}

// secrets tells of SDS. Those that are not there are warming.
func (d snapshot) secrets(st xds.Status, q Query) *adminv3.SecretsConfigDump {
	t := ofType(st, xds.SecretType)
	out := new(adminv3.SecretsConfigDump)
	for _, r := range t.Resources {
		if !q.wants(r.Name) {
			continue
		}
		s := &adminv3.SecretsConfigDump_DynamicSecret{
			Name: r.Name, VersionInfo: r.Version, Secret: inForce(t, r), LastUpdated: stamp(r.Updated),
			ErrorState: errorState(t, r), ClientStatus: clientStatus(r),
		}
		if r.Body == "" {
			out.DynamicWarmingSecrets = append(out.DynamicWarmingSecrets, s)
		} else {
			out.DynamicActiveSecrets = append(out.DynamicActiveSecrets, s)
		}
	}
	return out
}

func ofType(st xds.Status, url string) xds.TypeStatus {
	for _, t := range st.Types {
		if t.URL == url {
			return t
		}
	}
	return xds.TypeStatus{URL: url}
}

// inForce returns the value in force of a resource, nil without one.
func inForce(t xds.TypeStatus, r xds.ResourceStatus) *anypb.Any {
	if r.Body == "" {
		return nil
	}
	return &anypb.Any{TypeUrl: t.URL, Value: []byte(r.Body)}
}

// clientStatus says what became of the newest version.
func clientStatus(r xds.ResourceStatus) adminv3.ClientResourceStatus {
	return adminv3.ClientResourceStatus(adminv3.ClientResourceStatus_value[strings.ToUpper(r.State)])
}

// errorState says why the newest version is not in force, nil if it is.
func errorState(t xds.TypeStatus, r xds.ResourceStatus) *adminv3.UpdateFailureState {
	if r.Error == "" {
		return nil
	}
	e := &adminv3.UpdateFailureState{Details: strings.ToValidUTF8(r.Error, "?")}
	if r.Nack.Reason == r.Error {
		e.VersionInfo, e.LastUpdateAttempt = r.Nack.Version, stamp(r.Nack.At)
	}
	if r.Refused != "" {
		e.FailedConfiguration = &anypb.Any{TypeUrl: t.URL, Value: []byte(r.Refused)}
	}
	return e
}

// stamp leaves out the zero Time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// packed returns m, which this program has made, as an Any.
func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil { // text that is not UTF-8
		return nil
	}
	return a
}
