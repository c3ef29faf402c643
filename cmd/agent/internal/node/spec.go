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
	// Optional listeners are open as far as they can be, and hinder nothing
	// else: one that can't be opened is listed with the reason, and tried again
	// with each Apply and after 5 s, 10 s and so on, at most 60 s. The listeners
	// that leave make room for them first.
	Optional []config.Listener
	// Unsupported are clusters that the control plane gave and that can't be
	// run: they are listed with the reason, and refuse connections.
	Unsupported []Unsupported
	// UnsupportedListeners were asked for and can't be: they are listed with
	// the reason. Several may have one name.
	UnsupportedListeners []Unsupported
}

// Unsupported is a cluster or listener that is valid but can't be run.
type Unsupported struct {
	Name, Reason string
	Origin       config.Origin // of a listener
}

// With returns s with what a giver of less weight gives added, and the names
// that it gives in vain, because s has clusters of these names.
func (s Spec) With(clusters []config.Cluster, unsupported []Unsupported) (merged Spec, shadowed []string) {
	mine := make(map[string]bool, len(s.Clusters))
	for _, c := range s.Clusters {
		mine[c.Name] = true
	}
	for _, u := range s.Unsupported {
		mine[u.Name] = true
	}
	merged = s
	merged.Clusters, merged.Unsupported = slices.Clone(s.Clusters), slices.Clone(s.Unsupported)
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

// WithOptional returns s with optional listeners added; those whose names s has
// already are listed as unsupported.
func (s Spec) WithOptional(listeners []config.Listener) Spec {
	s.Optional, s.UnsupportedListeners = slices.Clone(s.Optional), slices.Clone(s.UnsupportedListeners)
	for _, l := range listeners {
		named := func(have config.Listener) bool { return have.Name == l.Name }
		if slices.ContainsFunc(s.Listeners, named) || slices.ContainsFunc(s.Optional, named) {
			s.UnsupportedListeners = append(s.UnsupportedListeners, Unsupported{l.Name, "there is a listener of this name already", l.Origin})
			continue
		}
		s.Optional = append(s.Optional, l)
	}
	return s
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
	for _, l := range slices.Concat(s.Listeners, s.Optional) {
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
