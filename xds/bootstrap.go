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

// bootstrapCreds are channel or call credentials. What Config is depends on Type, and
// of types that are not supported it may be anything.
type bootstrapCreds struct {
	Type   string          `json:"type"`
	Config json.RawMessage `json:"config"`
}

// credsConfig is Config of the types that are supported.
type credsConfig struct {
	CAFile   string `json:"ca_certificate_file"`
	CertFile string `json:"certificate_file"`
	KeyFile  string `json:"private_key_file"`
	Bundles  string `json:"spiffe_trust_bundle_map_file"`
	JWTFile  string `json:"jwt_token_file"`
}

// config returns Config, or an error that begins with path.
func (c bootstrapCreds) config(path string) (x credsConfig, err error) {
	if len(c.Config) > 0 {
		err = readJSON(c.Config, &x, path)
	}
	return x, err
}

// readJSON reads JSON. An error names the field, after path.
func readJSON(data []byte, v any, path string) error {
	err := json.Unmarshal(data, v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := e.Type.String()
		switch e.Type.Kind() {
		case reflect.Struct, reflect.Map:
			want = "object"
		case reflect.Slice:
			want = "array"
		}
		return fmt.Errorf("%s: %s where %s is wanted", cmp.Or(strings.Trim(path+"."+e.Field, "."), "the whole"), e.Value, want)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		line := 1 + strings.Count(string(data[:e.Offset]), "\n")
		return fmt.Errorf("line %d: %w", line, err)
	}
	return err
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
	if err := readJSON(data, &b, ""); err != nil {
		return Config{}, err
	}
	if len(b.Servers) == 0 {
		return Config{}, errors.New("xds_servers: missing: want a list with one server")
	}
	cfg := Config{Node: Node{
		ID: b.Node.ID, Cluster: b.Node.Cluster, Metadata: b.Node.Metadata, Locality: lbcore.Locality(b.Node.Locality),
	}}
	var err error
	if cfg.Servers, err = servers(b.Servers); err != nil {
		return Config{}, fmt.Errorf("xds_servers%w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Authorities)) {
		if a := b.Authorities[name]; len(a.Servers) > 0 {
			if own, err := servers(a.Servers); err != nil || !reflect.DeepEqual(own, cfg.Servers) {
				return Config{}, fmt.Errorf("authorities[%q].xds_servers: servers of its own are not supported: want none, or those of the top", name)
			}
		}
	}
	return cfg, nil
}

// servers returns what a list says, or an error that begins with an index.
func servers(list []bootstrapServer) (out []Server, err error) {
	for i, s := range list {
		server, err := s.server()
		if err != nil {
			return nil, fmt.Errorf("[%d].%w", i, err)
		}
		out = append(out, server)
	}
	return out, nil
}

// server returns what s says, or an error that begins with a field of s.
func (s bootstrapServer) server() (Server, error) {
	if s.URI == "" {
		return Server{}, errors.New("server_uri: missing: want host:port")
	}
	for i, c := range s.Creds {
		if c.Type != "insecure" && c.Type != "tls" {
			continue
		}
		out := Server{URI: s.URI}
		path := fmt.Sprintf("channel_creds[%d].config", i)
		if c.Type == "tls" {
			x, err := c.config(path)
			if err != nil {
				return Server{}, err
			}
			if x.Bundles != "" {
				return Server{}, fmt.Errorf("%s.spiffe_trust_bundle_map_file: not supported: want ca_certificate_file", path)
			}
			out.TLS = &TLS{CAFile: x.CAFile, CertFile: x.CertFile, KeyFile: x.KeyFile}
		}
		for i, c := range s.Calls {
			if c.Type != "jwt_token_file" {
				continue
			}
			path := fmt.Sprintf("call_creds[%d]", i)
			switch x, err := c.config(path + ".config"); {
			case err != nil:
				return Server{}, err
			case x.JWTFile == "":
				return Server{}, fmt.Errorf("%s.config.jwt_token_file: missing: want a path", path)
			case out.TokenFile != "":
				return Server{}, fmt.Errorf("%s: a second jwt_token_file", path)
			default:
				out.TokenFile = x.JWTFile
			}
		}
		return out, renamed(out.Check(), "tls: ", path+": ", "token_file: ", "call_creds: ")
	}
	if len(s.Creds) == 0 {
		return Server{}, errors.New(`channel_creds: missing: want [{"type": "insecure"}] or [{"type": "tls"}]`)
	}
	// Types are not quoted: what stands there by mistake may be a secret.
	return Server{}, fmt.Errorf(`channel_creds: none of the %d types is supported: want "insecure" or "tls"`, len(s.Creds))
}

// renamed returns err, which begins with the name of a field of the agent's own files,
// with the bootstrap's name for it.
func renamed(err error, names ...string) error {
	for i := 0; err != nil && i < len(names); i += 2 {
		if rest, ok := strings.CutPrefix(err.Error(), names[i]); ok {
			return errors.New(names[i+1] + rest)
		}
	}
	return err
}
