package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/discovery"
	"gatehouse.internal/internal/lastgood"
	"gatehouse.internal/lbcore"
)

// identifies says of each argument of a discovery block whether what was learnt
// with another value of it is of no use.
var identifies = map[string]bool{
	"service_name": true, "path": true,
	"service": true, "prepared_query": true, "tags": true, "node_meta": true, "datacenter": true, "namespace": true,
	"partition": true, "peer": true, "sameness_group": true, "address": true, "port_name": true, "socket_paths": true,
	"kinds": true, "connect": true, "near": true, "nearest": true,
	"name": true, "type": true, "port": true, "targets": true, "nameservers": true,

	"endpoints": false, "poll_interval": false, "consistency": false, "cached": false, "tcp": false,
	"min_ttl": false, "max_ttl": false, "refresh": false, "refresh_limit": false, "min_backoff": false, "max_backoff": false,
	"misses": false, "hold_nxdomain": false, "hold_nodata": false, "hold_refused": false, "hold_timeout": false,
}

// sourceKey names the endpoints of a discovery block. Arguments that are not set
// are left out, so that new ones change no name.
func sourceKey(cluster string, d *config.Discovery, scope string) lastgood.Key {
	parts := []string{cluster, d.Kind, scope}
	v := reflect.ValueOf(d).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("hcl"), ",")
		if identifies[name] && !v.Field(i).IsZero() {
			parts = append(parts, fmt.Sprintf("%s=%q", name, fmt.Sprint(v.Field(i).Interface()))) // maps are sorted
		}
	}
	return lastgood.Key{Kind: "endpoints", Name: strings.Join(parts, " ")}
}

// restored describes the set of st if it is one of an earlier run; else it is nil.
func restored(st discovery.State) *Restored {
	if r, ok := errors.AsType[*discovery.RestoredError](st.Err); ok && st.Known {
		return &Restored{r.Confirmed, lastgood.Age(r.Confirmed)}
	}
	return nil
}

// restored says, in one line, that the endpoints are those of an earlier run, or
// is empty. It may be called from anywhere.
func (c *cluster) restored() string {
	st := c.latest.State()
	r := restored(st)
	if r == nil {
		return ""
	}
	return fmt.Sprintf("stale, its %d endpoints are those of before the restart, %s old", st.Set.Len(), r.Age.Round(time.Second))
}

// kept is what the operator has said of the addresses of a cluster, on disk. The
// cluster's owner has it.
type kept struct {
	item *lastgood.Item
	said map[lbcore.Addr]bool // as the item has it
}

// load returns what an earlier run has kept.
func (k *kept) load(log *slog.Logger) map[lbcore.Addr]bool {
	r, ok := k.item.Load()
	if !ok {
		return nil
	}
	manual, err := decodeSaid(r.Payload)
	if err != nil {
		k.item.Damaged(err)
		return nil
	}
	if len(manual) > 0 {
		log.Info("what the operator has said of endpoints before the restart is in force", "endpoints", slices.SortedFunc(maps.Keys(manual), lbcore.Addr.Compare))
	}
	return manual
}

// decodeSaid reads what encodeSaid has written.
func decodeSaid(payload []byte) (map[lbcore.Addr]bool, error) {
	var said map[string]bool
	if err := json.Unmarshal(payload, &said); err != nil {
		return nil, err
	}
	if said == nil {
		return nil, errors.New("it has no endpoints")
	}
	manual := make(map[lbcore.Addr]bool, len(said))
	for text, enabled := range said {
		a, err := lbcore.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		manual[a] = enabled
	}
	return manual, nil
}

func encodeSaid(manual map[lbcore.Addr]bool) ([]byte, error) {
	said := make(map[string]bool, len(manual))
	for a, enabled := range manual {
		said[a.String()] = enabled
	}
	return json.Marshal(said)
}

// save keeps what has been said; manual is not written any more.
func (k *kept) save(manual map[lbcore.Addr]bool) {
	if k.item == nil || maps.Equal(k.said, manual) {
		return
	}
	k.said = manual
	if len(manual) == 0 {
		k.item.Remove()
		return
	}
	k.item.Put(func() ([]byte, error) { return encodeSaid(manual) })
}
