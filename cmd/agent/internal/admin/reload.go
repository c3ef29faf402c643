package admin

import (
	"fmt"
	"net/http"
	"time"

	"gatehouse.internal/cmd/agent/internal/config"
	"gatehouse.internal/cmd/agent/internal/node"
)

// ReloadResult is what came of a reload.
type ReloadResult uint8

// The results, of which there are ReloadResults.
const (
	ReloadInForce ReloadResult = iota // what was read runs
	ReloadInPart                      // but for what Reload says
	ReloadRefused                     // what ran before runs on, whole
	ReloadResults
)

var resultNames = [...]string{"in_force", "in_part", "refused"}

// String returns "in_force" and so on.
func (r ReloadResult) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("ReloadResult(%d)", uint8(r))
}

// MarshalText is String's.
func (r ReloadResult) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (r *ReloadResult) UnmarshalText(text []byte) error {
	for i, name := range resultNames {
		if string(text) == name {
			*r = ReloadResult(i)
			return nil
		}
	}
	return fmt.Errorf("result %q of a reload is not known", text)
}

// Reload is what POST /reload answers. Its JSON is a contract with scripts: fields
// are added, never renamed.
type Reload struct {
	Result ReloadResult `json:"result"`
	// Error says why nothing was taken up; Errors are the mistakes in the
	// configuration, if that is why, and Bind that a listener can't be opened.
	Error  string        `json:"error,omitempty"`
	Errors config.Errors `json:"errors,omitempty"`
	Bind   bool          `json:"bind_failed,omitempty"`

	Warnings  config.Errors `json:"warnings,omitempty"`
	Clusters  Changes       `json:"clusters"`
	Listeners Changes       `json:"listeners"`
	// Settings are the paths of the others that have changed, as "log.level".
	Settings []string `json:"settings"`
	// NeedsRestart are those that have not, because only a restart can.
	NeedsRestart []string `json:"needs_restart"`
	// NotWarm are the clusters whose changes are not in force yet.
	NotWarm []node.Unsettled `json:"not_warm"`
}

// Changes are names, each in one of the lists.
type Changes struct {
	Added     []string `json:"added"`
	Changed   []string `json:"changed"`
	Removed   []string `json:"removed"`
	Unchanged []string `json:"unchanged"`
}

// The wait for what a reload has begun.
const (
	defaultReloadWait = 30 * time.Second
	maxReloadWait     = 10 * time.Minute
)

// reload answers when the configuration is in force, or after ?wait=30s: 200 if it
// was taken up, 400 if it has mistakes, 409 if it can't be put in force.
func reload(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wait := defaultReloadWait
		if s := r.URL.Query().Get("wait"); s != "" {
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 || d > maxReloadWait {
				http.Error(w, fmt.Sprintf("wait %q: want a duration of up to %v", s, maxReloadWait), http.StatusBadRequest)
				return
			}
			wait = d
		}
		// An error is that of a connection of a kind that has none.
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * maxReloadWait))
		out, err := cfg.Reload(r.Context(), wait)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case out.Result != ReloadRefused:
		case out.Errors != nil:
			w.WriteHeader(http.StatusBadRequest)
		default:
			w.WriteHeader(http.StatusConflict)
		}
		writeJSON(w, out)
	}
}
