package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// The times of a Registration.
const (
	registrationEvery = 10 * time.Second // is looked after
	deregisterWithin  = 2 * time.Second
)

var (
	metaKey  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) // as Consul has it
	hostName = regexp.MustCompile(`^[A-Za-z0-9.:%_-]+$`)
)

// Registration is a service that an agent registers for itself, with an http
// check. Name, ID, Port and CheckURL are required.
type Registration struct {
	Name, ID string
	Tags     []string
	Meta     map[string]string
	// Address and Port are where the service is; empty means the Consul agent's
	// address.
	Address string
	Port    int
	// CheckURL is what the Consul agent gets: 2xx passes, 429 warns, all else
	// is critical.
	CheckURL string
	// CheckInterval is the time between two checks, zero means 10 s.
	// CheckTimeout bounds one, zero means 2 s.
	CheckInterval, CheckTimeout time.Duration
	// DeregisterAfter takes the service out of the catalog when it was critical
	// for so long, at least 1 min; zero means never.
	// Source: DeregisterCriticalServiceAfter.
	DeregisterAfter time.Duration
}

// Validate reports everything that can't work, joined; each error begins with
// the name of the field as a configuration has it and a colon.
func (r Registration) Validate() error {
	var errs []error
	if r.Name == "" {
		errs = append(errs, errors.New("name: no name"))
	}
	switch {
	case r.ID == "":
		errs = append(errs, errors.New("id: no id"))
	case strings.Contains(r.ID, "/"):
		errs = append(errs, fmt.Errorf("id: %q: an id with a slash can't be asked for", r.ID))
	}
	if slices.Contains(r.Tags, "") {
		errs = append(errs, errors.New("tags: want no empty tag"))
	}
	for _, key := range slices.Sorted(maps.Keys(r.Meta)) {
		if !metaKey.MatchString(key) {
			errs = append(errs, fmt.Errorf("meta: key %q: want 1 to 128 letters, digits, _ and -", key))
		}
	}
	if r.Address != "" && !hostName.MatchString(r.Address) {
		errs = append(errs, fmt.Errorf("address: %q: want an IP address or a host name", r.Address))
	}
	if r.Port < 1 || r.Port > 65535 {
		errs = append(errs, fmt.Errorf("port: %d: want 1 to 65535", r.Port))
	}
	if u, err := url.Parse(r.CheckURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		errs = append(errs, fmt.Errorf("check_url: %q: want http://host:port/path", r.CheckURL))
	}
	if r.CheckInterval < 0 {
		errs = append(errs, fmt.Errorf("check_interval: %v: want a positive time", r.CheckInterval))
	}
	if r.CheckTimeout < 0 {
		errs = append(errs, fmt.Errorf("check_timeout: %v: want a positive time", r.CheckTimeout))
	}
	if d := r.DeregisterAfter; d != 0 && d < time.Minute {
		errs = append(errs, fmt.Errorf("deregister_after: %v: want at least 1m", d))
	}
	return errors.Join(errs...)
}

// service returns r as the Consul agent takes it.
func (r *Registration) service() *api.AgentServiceRegistration {
	orDefault := func(d, def time.Duration) string {
		if d == 0 {
			d = def
		}
		return d.String()
	}
	check := &api.AgentServiceCheck{
		CheckID: "service:" + r.ID, Name: r.Name + " is ready", HTTP: r.CheckURL,
		Interval: orDefault(r.CheckInterval, 10*time.Second), Timeout: orDefault(r.CheckTimeout, 2*time.Second),
	}
	if r.DeregisterAfter > 0 {
		check.DeregisterCriticalServiceAfter = r.DeregisterAfter.String()
	}
	return &api.AgentServiceRegistration{
		ID: r.ID, Name: r.Name, Tags: r.Tags, Meta: r.Meta, Address: r.Address, Port: r.Port, Check: check,
	}
}

// ErrStays is the cause of the end of Register's context where another process is that
// service from then on.
var ErrStays = errors.New("another process is registered in the place of this one")

// Register keeps r registered with the Consul agent until ctx ends, and then
// takes it back, for which it waits 2 s at most. It looks every 10 s whether
// the agent still has it: one that was restarted with an empty state has not.
// An agent that can't be reached is tried again for ever, and logged once. Its
// requests wait for no others. If the cause of ctx's end is ErrStays nothing is taken
// back. It returns Validate's error, or ctx.Err().
func (c *Client) Register(ctx context.Context, r Registration) error {
	if err := r.Validate(); err != nil {
		return err
	}
	var (
		retry      backoff
		registered bool   // once at least
		said       string // of the trouble, as logged last
	)
	for {
		fresh, err := c.assert(ctx, &r, registered)
		if ctx.Err() != nil {
			break
		}
		wait := jitter(registrationEvery)
		if err != nil {
			wait = retry.fail()
			if said != err.Error() {
				said = err.Error()
				c.log.Warn("this agent is not registered with consul", "service", r.Name, "err", err)
			}
		} else {
			retry.reset()
			if fresh {
				c.log.Info("registered with consul", "service", r.Name, "id", r.ID, "again", registered)
			}
			registered, said = true, ""
		}
		if pause(ctx, wait) != nil {
			break
		}
	}
	if errors.Is(context.Cause(ctx), ErrStays) {
		return ctx.Err()
	}
	// Also where no answer was seen: the request may have arrived.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), deregisterWithin)
	defer cancel()
	_, err := c.ask(end, lookupTimeout, api.QueryOptions{}, func(opts *api.QueryOptions) (*api.QueryMeta, error) {
		return nil, c.api.Agent().ServiceDeregisterOpts(r.ID, opts)
	})
	if err != nil && registered {
		c.log.Warn("this agent stays registered with consul", "service", r.Name, "id", r.ID, "err", err)
	}
	return ctx.Err()
}

// assert registers r, and reports whether it did. If look is set, it does so
// only where the agent does not have the service; the first time it may have
// one of an earlier run, with other settings.
func (c *Client) assert(ctx context.Context, r *Registration, look bool) (registered bool, err error) {
	if look {
		if has, err := c.has(ctx, r); has || err != nil {
			return false, err
		}
	}
	_, err = c.ask(ctx, lookupTimeout, api.QueryOptions{}, func(opts *api.QueryOptions) (*api.QueryMeta, error) {
		write := api.ServiceRegisterOpts{ReplaceExistingChecks: true, Token: opts.Token}.WithContext(opts.Context())
		return nil, c.api.Agent().ServiceRegisterOpts(r.service(), write)
	})
	return err == nil, err
}

// has reports whether the agent has the service.
func (c *Client) has(ctx context.Context, r *Registration) (has bool, err error) {
	_, err = c.ask(ctx, lookupTimeout, api.QueryOptions{}, func(opts *api.QueryOptions) (*api.QueryMeta, error) {
		_, meta, err := c.api.Agent().Service(r.ID, opts)
		if se, ok := errors.AsType[api.StatusError](err); ok && se.Code == 404 {
			return meta, nil
		}
		has = err == nil
		return meta, err
	})
	return has, err
}
