package xds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"gatehouse.internal/lbcore"
)

// maxBootstrap bounds the size of a bootstrap file.
const maxBootstrap = 1 << 20

// bootstrap is the part of gRPC's bootstrap format that is used.
type bootstrap struct {
	Servers []bootstrapServer `json:"xds_servers"`
	Node    struct {
		ID       string         `json:"id"`
		Cluster  string         `json:"cluster"`
		Metadata map[string]any `json:"metadata"`
		Locality struct {
			Region  string `json:"region"`
			Zone    string `json:"zone"`
			SubZone string `json:"sub_zone"`
		} `json:"locality"`
	} `json:"node"`
	Authorities map[string]struct {
		Servers []bootstrapServer `json:"xds_servers"`
	} `json:"authorities"`
}

type bootstrapServer struct {
	URI   string           `json:"server_uri"`
	Creds []bootstrapCreds `json:"channel_creds"`
	Calls []bootstrapCreds `json:"call_creds"`
}

// bootstrapCreds are channel or call credentials; which fields Config has depends
// on Type.
type bootstrapCreds struct {
	Type   string `json:"type"`
	Config struct {
		CAFile   string `json:"ca_certificate_file"`
		CertFile string `json:"certificate_file"`
		KeyFile  string `json:"private_key_file"`
		Bundles  string `json:"spiffe_trust_bundle_map_file"`
		JWTFile  string `json:"jwt_token_file"`
	} `json:"config"`
}

// LoadBootstrap reads a bootstrap file; see ParseBootstrap.
func LoadBootstrap(path string) (Config, error) {
	cfg, err := loadBootstrap(path)
	if err != nil {
		return Config{}, fmt.Errorf("bootstrap %s: %w", path, err)
	}
	return cfg, nil
}

func loadBootstrap(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, errors.Unwrap(err) // without the path, which the caller adds
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBootstrap+1))
	if err != nil {
		return Config{}, err
	}
	if len(data) > maxBootstrap {
		return Config{}, fmt.Errorf("more than %d bytes", maxBootstrap)
	}
	return ParseBootstrap(data)
}

// ParseBootstrap reads gRPC's JSON bootstrap format (gRFCs A27, A65, A71, A97):
// xds_servers, and node. An empty node.id is left to the caller. Unknown fields
// and server features are ignored. Of channel_creds "insecure" and "tls" are
// supported, and the first supported entry is used; of call_creds
// "jwt_token_file", and the others are ignored. Authorities may have no servers
// of their own. An error names the field. Files that it names are not looked at.
func ParseBootstrap(data []byte) (Config, error) {
	var b bootstrap
	if err := json.Unmarshal(data, &b); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return Config{}, fmt.Errorf("%s: %s where %s is wanted", cmp.Or(e.Field, "the whole"), e.Value, e.Type)
		}
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			line := 1 + strings.Count(string(data[:e.Offset]), "\n")
			return Config{}, fmt.Errorf("line %d: %w", line, err)
		}
		return Config{}, err
	}
	if len(b.Servers) == 0 {
		return Config{}, errors.New("xds_servers: missing: want a list with one server")
	}
	cfg := Config{Node: Node{
		ID: b.Node.ID, Cluster: b.Node.Cluster, Metadata: b.Node.Metadata, Locality: lbcore.Locality(b.Node.Locality),
	}}
	for i, s := range b.Servers {
		server, err := s.server()
		if err != nil {
			return Config{}, fmt.Errorf("xds_servers[%d].%w", i, err)
		}
		cfg.Servers = append(cfg.Servers, server)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Authorities)) {
		if a := b.Authorities[name]; len(a.Servers) > 0 && !reflect.DeepEqual(a.Servers, b.Servers) {
			return Config{}, fmt.Errorf("authorities[%q].xds_servers: servers of its own are not supported: want none, or those of the top", name)
		}
	}
	return cfg, nil
}

// server returns what s says, or an error that begins with a field of s.
func (s bootstrapServer) server() (Server, error) {
	if s.URI == "" {
		return Server{}, errors.New("server_uri: missing: want host:port")
	}
	var types []string
	for i, c := range s.Creds {
		types = append(types, fmt.Sprintf("%q", c.Type))
		if c.Type != "insecure" && c.Type != "tls" {
			continue
		}
		out := Server{URI: s.URI}
		if c.Type == "tls" {
			if c.Config.Bundles != "" {
				return Server{}, fmt.Errorf("channel_creds[%d].config.spiffe_trust_bundle_map_file: not supported: want ca_certificate_file", i)
			}
			out.TLS = &TLS{CAFile: c.Config.CAFile, CertFile: c.Config.CertFile, KeyFile: c.Config.KeyFile}
		}
		for i, c := range s.Calls {
			switch {
			case c.Type != "jwt_token_file":
			case c.Config.JWTFile == "":
				return Server{}, fmt.Errorf("call_creds[%d].config.jwt_token_file: missing: want a path", i)
			case out.TokenFile != "":
				return Server{}, fmt.Errorf("call_creds[%d]: a second jwt_token_file", i)
			default:
				out.TokenFile = c.Config.JWTFile
			}
		}
		return out, out.Check()
	}
	if len(types) == 0 {
		return Server{}, errors.New(`channel_creds: missing: want [{"type": "insecure"}] or [{"type": "tls"}]`)
	}
	return Server{}, fmt.Errorf(`channel_creds: %s not supported: want "insecure" or "tls"`, strings.Join(types, ", "))
}
