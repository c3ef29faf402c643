package admin

import (
	"fmt"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

// maxProfile is the longest CPU profile, in seconds: the server gives up a request
// after a minute.
const maxProfile = 30

// profiles are those of runtime/pprof that are shown. None of them holds what is in
// memory, other than names of functions and counts.
var profiles = []string{"goroutine", "heap", "allocs", "block", "mutex", "threadcreate"}

// profile answers with a profile of the process, at the paths and with the parameters
// of net/http/pprof; what that tells of the command line is not there.
func profile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	query := r.URL.Query()
	number := func(key string, otherwise, most int) (int, bool) {
		s := query.Get(key)
		if s == "" {
			return otherwise, true
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > most {
			http.Error(w, fmt.Sprintf("%s %q: want 0 to %d", key, s, most), http.StatusBadRequest)
			return 0, false
		}
		return n, true
	}
	if name == "profile" {
		seconds, ok := number("seconds", 5, maxProfile)
		if !ok {
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := pprof.StartCPUProfile(w); err != nil {
			http.Error(w, err.Error()+": ask again when that has ended", http.StatusConflict)
			return
		}
		defer pprof.StopCPUProfile()
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		return
	}
	for _, known := range profiles {
		if known != name {
			continue
		}
		debug, ok := number("debug", 0, 2)
		if !ok {
			return
		}
		if plain(w); debug == 0 {
			w.Header().Set("Content-Type", "application/octet-stream")
		}
		pprof.Lookup(name).WriteTo(w, debug) // an error is the reader's
		return
	}
	http.Error(w, fmt.Sprintf("profile %q: want profile or one of %q", name, profiles), http.StatusNotFound)
}

// recentLog answers with the newest lines of the log.
func recentLog(cfg Config) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		plain(w)
		w.Write(cfg.Log.Text())
	}
}

// ownReader refuses what a page of somebody else has a browser ask for: what costs
// something to answer is not for them, though they can't read it.
func ownReader(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "this is not for other pages", http.StatusForbidden)
			return
		}
		next(w, r)
	}
}
