package main

import (
	"net"
	"net/url"
	"strconv"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery/consul"
	"gatehouse.internal/lbcore"
)

// consulConfig returns how Consul is reached.
func consulConfig(c config.Consul) consul.Config {
	return consul.Config{
		Address: c.Address, SSL: c.SSL, Token: string(c.Token), TokenFile: c.TokenFile, HTTPAuth: string(c.HTTPAuth),
		CAFile: c.CAFile, CAPath: c.CAPath, CertFile: c.CertFile, KeyFile: c.KeyFile, TLSServerName: c.TLSServerName,
		InsecureSkipVerify: !c.SSLVerify,
		Datacenter:         c.Datacenter, Namespace: c.Namespace, Partition: c.Partition,
		WaitTime: c.WaitTime, MaxWatches: c.MaxWatches, MaxStale: c.MaxStale, EmptyHold: c.EmptyHold,
	}
}

// consulQuery returns what a discovery "consul" asks for.
func consulQuery(d config.Discovery) consul.Query {
	return consul.Query{
		Service: d.Service, PreparedQuery: d.PreparedQuery, PollInterval: d.PollInterval, Tags: d.Tags, NodeMeta: d.NodeMeta, Connect: d.Connect,
		Datacenter: d.Datacenter, Namespace: d.Namespace, Partition: d.Partition, Peer: d.Peer, SamenessGroup: d.SamenessGroup,
		Address: d.Address, PortName: d.PortName, SocketPaths: d.SocketPaths, Kinds: d.Kinds, Near: d.Near, Nearest: d.Nearest,
		Consistency: consul.Consistency(d.Consistency), Cached: d.Cached,
	}
}

// consulRegistration returns the service that the agent is, with its admin
// interface at addr. An interface on all addresses is asked on loopback by
// Consul's agent, and is where that agent is to everybody else.
func consulRegistration(r config.Register, a config.Admin, addr lbcore.Addr) consul.Registration {
	ip, port := addr.AddrPort().Addr(), strconv.Itoa(int(addr.AddrPort().Port()))
	own, asked := ip.String(), ip.String()
	if ip.IsUnspecified() {
		own, asked = "", "127.0.0.1"
		if ip.Is6() {
			asked = "::1"
		}
	}
	if r.Address != "" {
		own = r.Address
	}
	scheme := "http"
	if a.TLS.Enabled() {
		scheme = "https"
	}
	ready := url.URL{Scheme: scheme, Host: net.JoinHostPort(asked, port), Path: "/ready"}
	return consul.Registration{
		Name: r.Name, ID: r.ID, Tags: r.Tags, Meta: r.Meta, Address: own, Port: int(addr.AddrPort().Port()),
		CheckURL: ready.String(), CheckInterval: r.CheckInterval, CheckTimeout: r.CheckTimeout, DeregisterAfter: r.DeregisterAfter,
	}
}

// checkRegistration looks at what can be known of a registration before the
// admin interface is open.
func checkRegistration(r config.Register, a config.Admin) error {
	reg := consulRegistration(r, a, a.Address)
	if reg.Port == 0 { // the kernel is going to choose one
		reg.Port = 1
	}
	return reg.Validate()
}
