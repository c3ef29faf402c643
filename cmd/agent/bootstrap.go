package main

import (
	"cmp"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/lbcore"
	"gatehouse.internal/xds"
)

// bootstrap returns how the control plane is reached, or nil without one.
func bootstrap(cfg *config.Config) (*xds.Config, error) {
	if !cfg.XDS.Enabled() {
		return nil, nil
	}
	xc := xds.Config{Node: xds.Node{
		ID: cfg.Node.ID, Cluster: cfg.Node.Cluster, Locality: lbcore.Locality(cfg.Node.Locality), Metadata: cfg.Node.Metadata,
	}}
	if cfg.XDS.Bootstrap != "" || cfg.XDS.BootstrapText != "" { // its node goes before the node block
		var err error
		if xc, err = loadBootstrap(cfg.XDS); err != nil {
			return nil, err
		}
		xc.Node.ID = cmp.Or(xc.Node.ID, cfg.Node.ID)
		xc.Node.Locality = cmp.Or(xc.Node.Locality, lbcore.Locality(cfg.Node.Locality))
		for i := range xc.Servers {
			xc.Servers[i].Protocol = xds.Protocol(cfg.XDS.Protocol)
		}
	}
	if cfg.XDS.ServerURI != "" {
		xc.Servers = []xds.Server{xdsServer(config.XDSServer{URI: cfg.XDS.ServerURI}, cfg.XDS.Protocol)}
	}
	for _, s := range cfg.XDS.Servers {
		xc.Servers = append(xc.Servers, xdsServer(s, cfg.XDS.Protocol))
	}
	xc.UserAgentName = cfg.XDS.UserAgentName
	xc.Version = cmp.Or(cfg.XDS.UserAgentVersion, versionText())
	xc.MaxMessage = cfg.XDS.MaxMessageSize
	return &xc, nil
}

func loadBootstrap(x config.XDS) (xds.Config, error) {
	if x.Bootstrap == "" {
		return xds.ParseBootstrap([]byte(x.BootstrapText))
	}
	return xds.LoadBootstrap(x.Bootstrap)
}

func xdsServer(s config.XDSServer, protocol string) xds.Server {
	out := xds.Server{
		URI: s.URI, TokenFile: s.TokenFile, Metadata: s.InitialMetadata, MetadataFiles: s.InitialMetadataFiles,
		Protocol: xds.Protocol(protocol),
	}
	if s.TLS.Enabled {
		out.TLS = &xds.TLS{CAFile: s.TLS.CAFile, CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile, ServerName: s.TLS.ServerName}
	}
	return out
}
