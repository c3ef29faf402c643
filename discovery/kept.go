package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// RestoredError is the failure of a source that has not answered since the process
// started: the set in force is what was known in an earlier run. It is over with the
// first Replace.
type RestoredError struct {
	// Confirmed is until when the set is known to have been right, by the wall
	// clock, which may have been set since: see lastgood.Age.
	Confirmed time.Time
	// Reason is why the source has not answered.
	Reason error
}

// Error says since when nothing is known, and why.
func (e *RestoredError) Error() string {
	return fmt.Sprintf("what was known before the restart is in force, right until %s: %v",
		e.Confirmed.UTC().Format(time.RFC3339), e.Reason)
}

// Unwrap returns Reason.
func (e *RestoredError) Unwrap() error { return e.Reason }

// ErrNoAnswer is the Reason of a RestoredError as long as the source has said
// nothing at all.
var ErrNoAnswer = errors.New("no answer yet")

// A Resumer is a Source that does not believe each loss at once, and is to begin
// with what it knew in an earlier run. Resume is called before Watch.
type Resumer interface {
	Source
	Resume(lbcore.Set)
}

// Keep is src.Watch, with the sets kept in item. With restore, what that has of an
// earlier run is in force, as stale, until src says something. A nil item keeps
// nothing.
func Keep(ctx context.Context, src Source, item *lastgood.Item, restore bool, sink Sink) error {
	if item == nil {
		return src.Watch(ctx, sink)
	}
	k := &keeper{sink: sink, item: item}
	if r, ok := item.Load(); ok && restore {
		set, err := decodeSet(r.Payload)
		if err != nil {
			item.Damaged(err)
		} else {
			k.known, k.set, k.restored = true, set, &RestoredError{r.Confirmed, ErrNoAnswer}
			if r, ok := src.(Resumer); ok {
				r.Resume(set)
			}
			ReplaceStale(sink, set, k.restored)
		}
	}
	return src.Watch(ctx, k)
}

// keeper is the Sink that Keep gives to a source.
type keeper struct {
	sink     Sink
	item     *lastgood.Item
	known    bool // set was put, or loaded
	set      lbcore.Set
	restored *RestoredError // until the first Replace; never written
}

// Replace implements Sink.
func (k *keeper) Replace(set lbcore.Set) {
	k.restored = nil
	k.keep(set)
	k.item.Fresh(true)
	k.sink.Replace(set)
}

// Fail implements Sink.
func (k *keeper) Fail(err error) {
	k.item.Fresh(false)
	if k.restored != nil {
		err = &RestoredError{k.restored.Confirmed, err}
	}
	k.sink.Fail(err)
}

// ReplaceStale implements StaleSink.
func (k *keeper) ReplaceStale(set lbcore.Set, err error) {
	k.restored = nil
	k.keep(set)
	k.item.Fresh(false)
	ReplaceStale(k.sink, set, err)
}

func (k *keeper) keep(set lbcore.Set) {
	if !k.known || !k.set.Equal(set) {
		k.known, k.set = true, set
		k.item.Put(func() ([]byte, error) { return encodeSet(set) })
	}
}

// keptSet is a set on disk. All that an lbcore.Endpoint has is in it, as a test sees to,
// but for Labels: only the control plane gives these, and what it gives is kept as sent.
type keptSet struct {
	Overprovisioning uint32         `json:"overprovisioning_factor,omitempty"`
	WeightedHealth   bool           `json:"weighted_priority_health,omitempty"`
	Drops            []keptDrop     `json:"drop_overloads,omitempty"`
	Endpoints        []keptEndpoint `json:"endpoints"`
}

type keptDrop struct {
	Category   string `json:"category"`
	PerMillion uint32 `json:"per_million"`
}

type keptEndpoint struct {
	Address        string     `json:"address"`
	Weight         uint32     `json:"weight,omitempty"`
	LocalityWeight uint32     `json:"locality_weight,omitempty"`
	Priority       uint8      `json:"priority,omitempty"`
	Status         string     `json:"health_status,omitempty"`
	Enabled        *bool      `json:"enabled,omitempty"` // an override
	Region         string     `json:"region,omitempty"`
	Zone           string     `json:"zone,omitempty"`
	SubZone        string     `json:"sub_zone,omitempty"`
	HashKey        string     `json:"hash_key,omitempty"`
	Hostname       string     `json:"hostname,omitempty"`
	Additional     []string   `json:"additional_addresses,omitempty"`
	Check          *keptCheck `json:"health_check,omitempty"`
}

type keptCheck struct {
	Address  string `json:"address,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
}

func encodeSet(set lbcore.Set) ([]byte, error) {
	k := keptSet{
		Overprovisioning: set.Policy().Overprovisioning, WeightedHealth: set.Policy().WeightedHealth,
		Endpoints: make([]keptEndpoint, 0, set.Len()),
	}
	for d := range set.Policy().Drops.All() {
		k.Drops = append(k.Drops, keptDrop(d))
	}
	for _, e := range set.All() {
		x := keptEndpoint{
			Address: e.Addr.String(), Weight: e.Weight, LocalityWeight: e.LocalityWeight, Priority: e.Priority,
			Region: e.Locality.Region, Zone: e.Locality.Zone, SubZone: e.Locality.SubZone, HashKey: e.HashKey, Hostname: e.Hostname,
		}
		if e.Status != lbcore.StatusUnknown {
			x.Status = e.Status.String()
		}
		if e.Enabled != lbcore.OverrideNone {
			x.Enabled = new(e.Enabled == lbcore.OverrideEnable)
		}
		for a := range e.Additional.All() {
			x.Additional = append(x.Additional, a.String())
		}
		if c := e.Check; c != (lbcore.Check{}) {
			x.Check = &keptCheck{Hostname: c.Hostname, Disabled: c.Disabled}
			if c.Addr.IsValid() {
				x.Check.Address = c.Addr.String()
			}
		}
		k.Endpoints = append(k.Endpoints, x)
	}
	return json.Marshal(k)
}

// decodeSet reads what encodeSet wrote. Whatever is not so is an error.
func decodeSet(b []byte) (lbcore.Set, error) {
	var k keptSet
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&k); err != nil {
		return lbcore.Set{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return lbcore.Set{}, errors.New("more follows the set")
	}
	if k.Endpoints == nil { // a set of none says so
		return lbcore.Set{}, errors.New("it has no list of endpoints")
	}
	eps := make([]lbcore.Endpoint, 0, min(len(k.Endpoints), lbcore.MaxEndpoints))
	for i := range k.Endpoints {
		e, err := k.Endpoints[i].endpoint()
		if err != nil {
			return lbcore.Set{}, fmt.Errorf("endpoint %d: %w", i, err)
		}
		eps = append(eps, e)
	}
	set, dropped, err := lbcore.NewSet(eps)
	if err == nil && len(dropped) > 0 {
		err = fmt.Errorf("address %s is there twice", dropped[0].Endpoint.Addr)
	}
	drops := make([]lbcore.Drop, 0, len(k.Drops))
	for _, d := range k.Drops {
		drops = append(drops, lbcore.Drop(d))
	}
	return set.WithPolicy(lbcore.SetPolicy{
		Overprovisioning: k.Overprovisioning, WeightedHealth: k.WeightedHealth, Drops: lbcore.DropsOf(drops...),
	}), err
}

func (x *keptEndpoint) endpoint() (e lbcore.Endpoint, err error) {
	e = lbcore.Endpoint{
		Weight: x.Weight, LocalityWeight: x.LocalityWeight, Priority: x.Priority,
		Locality: lbcore.Locality{Region: x.Region, Zone: x.Zone, SubZone: x.SubZone}, HashKey: x.HashKey, Hostname: x.Hostname,
	}
	if e.Addr, err = lbcore.ParseAddr(x.Address); err != nil {
		return e, err
	}
	if x.Status != "" {
		if e.Status, err = lbcore.ParseStatus(x.Status); err != nil {
			return e, err
		}
	}
	if x.Enabled != nil {
		if e.Enabled = lbcore.OverrideDisable; *x.Enabled {
			e.Enabled = lbcore.OverrideEnable
		}
	}
	if len(x.Additional) > lbcore.MaxAdditional {
		return e, fmt.Errorf("%d additional addresses: want at most %d", len(x.Additional), lbcore.MaxAdditional)
	}
	var more []lbcore.Addr
	for _, s := range x.Additional {
		a, err := lbcore.ParseAddr(s)
		if err != nil {
			return e, err
		}
		more = append(more, a)
	}
	e.Additional = lbcore.AddrsOf(more...)
	if c := x.Check; c != nil {
		e.Check = lbcore.Check{Hostname: c.Hostname, Disabled: c.Disabled}
		if c.Address != "" {
			e.Check.Addr, err = lbcore.ParseAddr(c.Address)
		}
	}
	return e, err
}
