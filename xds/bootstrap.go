package xds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gatehouse.internal/lbcore"
)

// maxBootstrap bounds the size of a bootstrap file.
const maxBootstrap = 1 << 20

// bootstrap is the part of gRPC's bootstrap format that is used.
type bootstrap struct {
	Servers []struct {
		URI   string `json:"server_uri"`
		Creds []struct {
			Type string `json:"type"`
		} `json:"channel_creds"`
	} `json:"xds_servers"`
	Node struct {
		ID       string         `json:"id"`
		Cluster  string         `json:"cluster"`
		Metadata map[string]any `json:"metadata"`
		Locality struct {
			Region  string `json:"region"`
			Zone    string `json:"zone"`
			SubZone string `json:"sub_zone"`
		} `json:"locality"`
	} `json:"node"`
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

// ParseBootstrap reads gRPC's JSON bootstrap format (gRFC A27): the first of
// xds_servers, and node. An empty node.id is left to the caller. Unknown fields
// are ignored, and so are further servers. Of channel_creds only "insecure" is
// supported; the first supported entry is used. An error names the field.
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
	server := b.Servers[0]
	if server.URI == "" {
		return Config{}, errors.New("xds_servers[0].server_uri: missing: want host:port")
	}
	var types []string
	for _, c := range server.Creds {
		types = append(types, fmt.Sprintf("%q", c.Type))
		if c.Type == "insecure" {
			return Config{ServerURI: server.URI, Node: Node{
				ID: b.Node.ID, Cluster: b.Node.Cluster, Metadata: b.Node.Metadata,
				Locality: lbcore.Locality(b.Node.Locality),
			}}, nil
		}
	}
	if len(types) == 0 {
		return Config{}, errors.New(`xds_servers[0].channel_creds: missing: want [{"type": "insecure"}]`)
	}
	return Config{}, fmt.Errorf(`xds_servers[0].channel_creds: %s not supported: want "insecure"`, strings.Join(types, ", "))
}
