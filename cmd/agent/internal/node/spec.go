package node

import (
	"errors"
	"fmt"
	"slices"

	"gatehouse.internal/cmd/agent/internal/config"
)

// Spec is the whole state that a node is to run. Names are unique.
type Spec struct {
	Clusters  []config.Cluster
	Listeners []config.Listener
	// Unsupported are clusters that the control plane gave and that can't be
	// run: they are listed with the reason, and refuse connections.
	Unsupported []Unsupported
}

// Unsupported is a cluster that is valid but can't be run.
type Unsupported struct {
	Name, Reason string
}

// With returns s with what the control plane gives added, and the names that
// it gives in vain, because a file's cluster of the same name wins.
func (s Spec) With(clusters []config.Cluster, unsupported []Unsupported) (merged Spec, shadowed []string) {
	mine := make(map[string]bool, len(s.Clusters))
	for _, c := range s.Clusters {
		mine[c.Name] = true
	}
	for _, u := range s.Unsupported {
		mine[u.Name] = true
	}
	merged = Spec{Clusters: slices.Clone(s.Clusters), Listeners: s.Listeners, Unsupported: slices.Clone(s.Unsupported)}
	for _, c := range clusters {
		if mine[c.Name] {
			shadowed = append(shadowed, c.Name)
			continue
		}
		merged.Clusters = append(merged.Clusters, c)
	}
	for _, u := range unsupported {
		if mine[u.Name] {
			shadowed = append(shadowed, u.Name)
			continue
		}
		merged.Unsupported = append(merged.Unsupported, u)
	}
	return merged, shadowed
}

// validate reports names that are there twice.
func (s Spec) validate() error {
	var errs []error
	seen := make(map[string]bool)
	once := func(kind, name string) {
		if key := kind + "\x00" + name; seen[key] {
			errs = append(errs, fmt.Errorf("%s %q is there twice", kind, name))
		} else {
			seen[key] = true
		}
	}
	for _, c := range s.Clusters {
		once("cluster", c.Name)
	}
	for _, u := range s.Unsupported {
		once("cluster", u.Name)
	}
	for _, l := range s.Listeners {
		once("listener", l.Name)
	}
	return errors.Join(errs...)
}

// BindError says that a listener could not be opened.
type BindError struct {
	Listener string
	Err      error
}

// Error names the listener and the reason.
func (e *BindError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *BindError) Unwrap() error { return e.Err }
