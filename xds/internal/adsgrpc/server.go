package adsgrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"gatehouse.internal/internal/filewatch"
	"gatehouse.internal/xds/internal/core"
)

// Protocol says which variant of the protocol a server is asked for.
type Protocol string

// The protocols.
const (
	// Auto asks for Delta, and for StateOfTheWorld if the server does not have
	// that. It is the zero value too.
	Auto Protocol = "auto"
	// Delta is the incremental variant: Consul has no other.
	Delta Protocol = "delta"
	// StateOfTheWorld is the variant that gRPC's own clients speak.
	StateOfTheWorld Protocol = "sotw"
)

// Server says how one management server is reached. URI is required.
type Server struct {
	// URI is the server's address, "host:port", or another gRPC target such as
	// "unix:///run/xds.sock". It is shown and logged, so it has no @, ? or #, behind
	// or before which a secret could be.
	URI string
	// TLS encrypts the connection; nil does not.
	TLS *TLS
	// TokenFile is a file with a token that is sent as "authorization: Bearer …",
	// read anew for each stream. It needs TLS or a unix socket.
	// Source: gRFC A97, jwt_token_file.
	TokenFile string
	// Metadata is sent at the begin of each stream, and so are the contents of
	// MetadataFiles, both by key. Values are text of printable ASCII.
	// Source: GrpcService.initial_metadata.
	Metadata, MetadataFiles map[string]string
	// Protocol is the variant; empty is Auto.
	Protocol Protocol
}

// TLS says how a server is verified, and what it is shown. The zero value takes
// the system's authorities and the host of the URI, and shows nothing. Files are
// PEM and loaded again when they change. Source: gRFC A65.
type TLS struct {
	// CAFile has the authorities. CertFile and KeyFile are the client's own
	// certificate and key: both or none.
	CAFile, CertFile, KeyFile string
	// ServerName is what the server's certificate must name, if not the host of
	// the URI.
	ServerName string
}

// Check returns what is wrong with s, beginning with the name of the field as
// configuration files have it, or nil. It looks into no files.
func (s Server) Check() error {
	switch {
	case s.URI == "":
		return errors.New("server_uri: missing: want host:port of the management server")
	case strings.ContainsAny(s.URI, "@?#"): // not quoted: it may be a password
		return errors.New("server_uri: has a user, a query or a fragment in it: want host:port of the management server, and a token_file or initial_metadata for secrets")
	case strings.HasPrefix(s.URI, "http://") || strings.HasPrefix(s.URI, "https://"):
		return fmt.Errorf("server_uri: %q is a URL: want host:port of the management server", s.URI)
	case strings.ContainsFunc(s.URI, func(r rune) bool { return r <= ' ' }):
		return fmt.Errorf("server_uri: %q has a blank in it: want host:port of the management server", s.URI)
	case !slices.Contains([]Protocol{"", Auto, Delta, StateOfTheWorld}, s.Protocol):
		return fmt.Errorf("protocol: %q: want auto, delta or sotw", s.Protocol)
	case s.TLS != nil && (s.TLS.CertFile == "") != (s.TLS.KeyFile == ""):
		return errors.New("tls: a certificate without its key, or a key without its certificate")
	case s.TokenFile != "" && s.TLS == nil && !strings.HasPrefix(s.URI, "unix:"):
		return errors.New("token_file: the token would be sent in plain text: it needs tls")
	}
	for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
		if _, twice := s.MetadataFiles[key]; twice {
			return fmt.Errorf("initial_metadata: %q is in initial_metadata_files too", key)
		}
		if !printable(s.Metadata[key]) {
			return fmt.Errorf("initial_metadata: the value of %q is not printable ASCII", key)
		}
	}
	for name, m := range map[string]map[string]string{"initial_metadata": s.Metadata, "initial_metadata_files": s.MetadataFiles} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !validKey(key) {
				return fmt.Errorf("%s: %q is no key of metadata: want lower-case letters, digits, dashes, dots and underscores, and neither grpc- before nor -bin behind", name, key)
			}
		}
	}
	return nil
}

// validKey reports whether key may be sent. The others are gRPC's own.
func validKey(key string) bool {
	for _, r := range key {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) {
			return false
		}
	}
	reserved := []string{"content-type", "te", "user-agent", "connection", "host"}
	return key != "" && !strings.HasPrefix(key, "grpc-") && !strings.HasSuffix(key, "-bin") && !slices.Contains(reserved, key)
}

func printable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}

// outgoing returns ctx with what is sent at the begin of a stream.
func (s Server) outgoing(ctx context.Context) (context.Context, error) {
	md := metadata.New(s.Metadata)
	for _, key := range slices.Sorted(maps.Keys(s.MetadataFiles)) {
		value, err := filewatch.Secret(s.MetadataFiles[key])
		if err != nil {
			return nil, fmt.Errorf("initial_metadata_files: %q: %w", key, err)
		}
		md.Set(key, value)
	}
	if s.TokenFile != "" {
		token, err := filewatch.Secret(s.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token_file: %w", err)
		}
		md.Set("authorization", "Bearer "+token)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}

// variant returns the variant to begin with.
func (p Protocol) variant() core.Variant {
	if p == StateOfTheWorld {
		return core.StateOfTheWorld
	}
	return core.Delta
}
