package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
)

// endpointRows is what endpoints -json prints. It is a contract with scripts:
// fields are added, never renamed.
type endpointRows struct {
	Endpoints []endpointRow `json:"endpoints"`
}

type endpointRow struct {
	Cluster  string `json:"cluster"`
	Address  string `json:"address"`
	Ready    bool   `json:"ready"`
	State    string `json:"state"`
	Health   string `json:"health"`
	Why      string `json:"why,omitempty"`
	Enabled  bool   `json:"enabled"`
	Weight   uint32 `json:"weight"`
	Priority uint8  `json:"priority"`
	Region   string `json:"region,omitempty"`
	Zone     string `json:"zone,omitempty"`
	SubZone  string `json:"sub_zone,omitempty"`
	Active   uint64 `json:"cx_active"`
	Total    uint64 `json:"cx_total"`
	Failed   uint64 `json:"cx_connect_fail"`
}

// clustersAnswer is as much of /clusters?format=json as endpoints are shown by.
type clustersAnswer struct {
	Clusters []struct {
		Name  string `json:"name"`
		Hosts []struct {
			Address struct {
				Socket *struct {
					Address string `json:"address"`
					Port    uint16 `json:"port_value"`
				} `json:"socket_address"`
				Pipe struct {
					Path string `json:"path"`
				} `json:"pipe"`
			} `json:"address"`
			Stats []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"stats"`
			Weight   uint32 `json:"weight"`
			Priority uint8  `json:"priority"`
			Locality struct {
				Region  string `json:"region"`
				Zone    string `json:"zone"`
				SubZone string `json:"sub_zone"`
			} `json:"locality"`
			Gatehouse struct {
				Ready   bool   `json:"ready"`
				State   string `json:"state"`
				Health  string `json:"health"`
				Why     string `json:"why"`
				Enabled bool   `json:"enabled"`
			} `json:"gatehouse"`
		} `json:"host_statuses"`
	} `json:"cluster_statuses"`
}

// rows returns the endpoints of a cluster, or of all for "", and whether there is
// such a cluster.
func (a *clustersAnswer) rows(cluster string) (rows []endpointRow, known bool) {
	rows = []endpointRow{}
	for _, c := range a.Clusters {
		if cluster != "" && c.Name != cluster {
			continue
		}
		known = true
		for _, h := range c.Hosts {
			r := endpointRow{
				Cluster: c.Name, Address: "unix://" + h.Address.Pipe.Path,
				Ready: h.Gatehouse.Ready, State: h.Gatehouse.State, Health: h.Gatehouse.Health, Why: h.Gatehouse.Why, Enabled: h.Gatehouse.Enabled,
				Weight: h.Weight, Priority: h.Priority, Region: h.Locality.Region, Zone: h.Locality.Zone, SubZone: h.Locality.SubZone,
			}
			if s := h.Address.Socket; s != nil {
				r.Address = net.JoinHostPort(s.Address, strconv.Itoa(int(s.Port)))
			}
			for _, s := range h.Stats {
				n, _ := strconv.ParseUint(s.Value, 10, 64)
				switch s.Name {
				case "cx_active":
					r.Active = n
				case "cx_total":
					r.Total = n
				case "cx_connect_fail":
					r.Failed = n
				}
			}
			rows = append(rows, r)
		}
	}
	return rows, known
}

func endpointsCommand(stdout io.Writer) *askCommand {
	var asJSON bool
	return &askCommand{
		name: "endpoints", synopsis: "Lists endpoints, and why they take connections or not",
		args: []string{"CLUSTER"}, optional: 1,
		usage: `
Usage: gatehouse endpoints [options] [CLUSTER]

  Lists the endpoints of a cluster, or of all, with their state, and for those that
  take no connections why.`,
		flags: func(fs *flag.FlagSet) { jsonFlag(fs, &asJSON) },
		run: func(ctx context.Context, c *client, args []string) (int, error) {
			var all clustersAnswer
			if err := c.getJSON(ctx, "/clusters", nil, &all); err != nil {
				return exitRuntime, err
			}
			cluster := strings.Join(args, "")
			rows, known := all.rows(cluster)
			if cluster != "" && !known {
				return exitRuntime, fmt.Errorf("the agent at %s has no cluster %q", c.at, cluster)
			}
			if asJSON {
				printJSON(stdout, endpointRows{rows})
				return exitOK, nil
			}
			w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "CLUSTER\tENDPOINT\tSTATE\tHEALTH\tWEIGHT\tPRIORITY\tLOCALITY\tACTIVE\tTOTAL\tFAILED\tWHY")
			for _, r := range rows {
				locality := strings.Trim(r.Region+"/"+r.Zone+"/"+r.SubZone, "/")
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\n", shown(r.Cluster), shown(r.Address), shown(r.State), shown(r.Health),
					r.Weight, r.Priority, shown(locality), r.Active, r.Total, r.Failed, shown(r.Why))
			}
			return exitOK, w.Flush()
		},
	}
}
