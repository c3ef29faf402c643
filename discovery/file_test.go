package discovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse.internal/discovery"
	"gatehouse.internal/discovery/discoverytest"
	"gatehouse.internal/lbcore"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replaceFile puts data at path in one step.
func replaceFile(t *testing.T, path string, data []byte) {
	t.Helper()
	tmp := path + ".tmp"
	must(t, os.WriteFile(tmp, data, 0o644))
	must(t, os.Rename(tmp, path))
}

// list is the content of an HCL file with these addresses.
func list(addrs ...string) []byte {
	s := "endpoints = ["
	for _, a := range addrs {
		s += `"` + a + `", `
	}
	return []byte(s + "]\n")
}

// watchFile runs f until the test ends. Its Interval is so long that only the
// watcher can see a change.
func watchFile(t *testing.T, f discovery.File) *discoverytest.Recorder {
	t.Helper()
	f.Interval = time.Hour
	r := new(discoverytest.Recorder)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Watch(ctx, r) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != context.Canceled {
			t.Errorf("Watch returned %v", err)
		}
	})
	return r
}

func TestFileConforms(t *testing.T) {
	worlds := map[string]struct {
		file string
		// broken does what Break does to the file at path.
		broken func(t *testing.T, path string)
	}{
		"hcl, bad content": {"eps.hcl", func(t *testing.T, path string) { replaceFile(t, path, []byte("endpoints = [")) }},
		"json, no file":    {"eps.json", func(t *testing.T, path string) { must(t, os.Remove(path)) }},
		"no directory":     {"eps.hcl", func(t *testing.T, path string) { must(t, os.RemoveAll(filepath.Dir(path))) }},
	}
	for name, c := range worlds {
		wrappers := map[string]func(discovery.Source) discovery.Source{
			"":           func(s discovery.Source) discovery.Source { return s },
			", in order": func(s discovery.Source) discovery.Source { return discovery.Ordered(newPuppet(), s) },
		}
		for suffix, wrap := range wrappers {
			t.Run(name+suffix, func(t *testing.T) {
				discoverytest.Run(t, discoverytest.Harness{New: func(t *testing.T) (discovery.Source, discoverytest.World) {
					path := filepath.Join(t.TempDir(), "d", c.file)
					eps, broken := discoverytest.First(), false
					put := func() {
						if !broken {
							must(t, os.MkdirAll(filepath.Dir(path), 0o755))
							replaceFile(t, path, write(path, eps))
						}
					}
					put()
					return wrap(discovery.File{Path: path}), discoverytest.World{
						Set:   func(e []lbcore.Endpoint) { eps = e; put() },
						Break: func() { broken = true; c.broken(t, path) },
						Heal:  func() { broken = false; put() },
					}
				}})
			})
		}
	}
}

func TestFileWrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	must(t, os.WriteFile(path, list("10.0.0.1:80"), 0o644))
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"))

	// An editor or a script stops in the middle, and goes on later.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("endpoints = [\n  \"10.0.0.1:80\",\n  \"10.0.")
	must(t, err)
	at = r.WaitFail(t, at, path+":3:9: ")
	_, err = f.WriteString("0.2:80\",\n]\n")
	must(t, err)
	at = r.WaitSet(t, at, addr("10.0.0.1:80"), addr("10.0.0.2:80"))
	for _, rep := range r.Reports()[:at] {
		if rep.Err == nil && rep.Set.Len() != 1 {
			t.Errorf("a half-written file was taken for a whole one:\n%s", r)
		}
	}
}

func TestFileBadContentSaysWhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	must(t, os.WriteFile(path, []byte("endpoints = [\n  \"10.0.0.1:80\",\n  { address = \"10.0.0.2\", wait = 1 },\n]\n"), 0o644))
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitFail(t, 0, path+`:3:15: address "10.0.0.2": want IP:port`)
	if err := r.Reports()[at].Err; !strings.Contains(err.Error(), "\n"+path+`:3:27: unknown key "wait" in an endpoint`) {
		t.Errorf("want both mistakes, got %v", err)
	}
	replaceFile(t, path, list("10.0.0.1:80"))
	r.WaitSet(t, at, addr("10.0.0.1:80"))
}

// As Kubernetes updates a ConfigMap: the file is a link through "..data",
// which is a link to a directory and is switched.
func TestFileConfigMap(t *testing.T) {
	dir := t.TempDir()
	publish := func(version string, data []byte) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, version, "eps.hcl"), data, 0o644))
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("..1", list("10.0.0.1:80"))
	path := filepath.Join(dir, "eps.hcl")
	must(t, os.Symlink(filepath.Join("..data", "eps.hcl"), path))
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"))
	publish("..2", list("10.0.0.2:80"))
	at = r.WaitSet(t, at, addr("10.0.0.2:80"))
	must(t, os.RemoveAll(filepath.Join(dir, "..1")))
	publish("..3", list("10.0.0.3:80"))
	r.WaitSet(t, at, addr("10.0.0.3:80"))
}

// A link to a file elsewhere, which is replaced there; then the link is turned
// to another directory, and the file there is replaced.
func TestFileLinkElsewhere(t *testing.T) {
	dir, a, b := t.TempDir(), filepath.Join(t.TempDir(), "eps"), filepath.Join(t.TempDir(), "eps")
	path := filepath.Join(dir, "eps.hcl")
	replaceFile(t, a, list("10.0.0.1:80"))
	replaceFile(t, b, list("10.0.0.3:80"))
	must(t, os.Symlink(a, path))
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"))
	replaceFile(t, a, list("10.0.0.2:80"))
	at = r.WaitSet(t, at, addr("10.0.0.2:80"))
	must(t, os.Symlink(b, path+".tmp"))
	must(t, os.Rename(path+".tmp", path))
	at = r.WaitSet(t, at, addr("10.0.0.3:80"))
	replaceFile(t, b, list("10.0.0.4:80"))
	r.WaitSet(t, at, addr("10.0.0.4:80"))
}

func TestFileDeletedAndRecreated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	must(t, os.WriteFile(path, list("10.0.0.1:80"), 0o644))
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"))
	must(t, os.Remove(path))
	at = r.WaitFail(t, at, path+": no such file or directory")
	if err := r.Reports()[at].Err; !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want it to wrap os.ErrNotExist", err)
	}
	replaceFile(t, path, list("10.0.0.1:80")) // as before
	r.WaitSet(t, at, addr("10.0.0.1:80"))
}

// Neither the file nor its directory is there at first. Then the directory is
// swapped for another one.
func TestFileDirectoryComesLaterAndIsSwapped(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	path := filepath.Join(dir, "eps.hcl")
	r := watchFile(t, discovery.File{Path: path})
	at := r.WaitFail(t, 0, "endpoints file: stat "+path+": no such file or directory")
	must(t, os.MkdirAll(dir, 0o755))
	replaceFile(t, path, list("10.0.0.1:80"))
	at = r.WaitSet(t, at, addr("10.0.0.1:80"))

	other := filepath.Join(top, "other")
	must(t, os.Mkdir(other, 0o755))
	must(t, os.WriteFile(filepath.Join(other, "eps.hcl"), list("10.0.0.2:80"), 0o644))
	must(t, os.Rename(dir, filepath.Join(top, "old")))
	must(t, os.Rename(other, dir))
	at = r.WaitSet(t, at, addr("10.0.0.2:80"))
	replaceFile(t, path, list("10.0.0.3:80")) // the new directory is watched
	r.WaitSet(t, at, addr("10.0.0.3:80"))
}

func TestFileTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	data := list("10.0.0.1:80")
	must(t, os.WriteFile(path, data, 0o644))
	r := watchFile(t, discovery.File{Path: path, MaxBytes: int64(len(data))})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"))
	replaceFile(t, path, append(data, '\n'))
	r.WaitFail(t, at, path+" is larger than 30 bytes")
}

func TestFileDuplicateAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eps.hcl")
	must(t, os.WriteFile(path, list("10.0.0.1:80", "10.0.0.2:80", "10.0.0.1:80"), 0o644))
	dup := new(discovery.Duplicates)
	r := watchFile(t, discovery.File{Path: path, Duplicates: dup})
	at := r.WaitSet(t, 0, addr("10.0.0.1:80"), addr("10.0.0.2:80"))
	if dup.Total() != 1 {
		t.Errorf("got %d duplicates, want 1", dup.Total())
	}
	replaceFile(t, path, []byte(`endpoints = ["10.0.0.1:80", "10.0.0.1:80", "bad"]`))
	r.WaitFail(t, at, `"bad"`)
	if dup.Total() != 1 {
		t.Errorf("an answer that was refused counts: got %d duplicates, want 1", dup.Total())
	}
}

func TestFileRefusesBadSettings(t *testing.T) {
	for name, f := range map[string]discovery.File{
		"no path":       {},
		"negative size": {Path: "x", MaxBytes: -1},
		"negative time": {Path: "x", Interval: -1},
		"no settling":   {Path: "x", Settle: -1},
	} {
		if err := f.Watch(t.Context(), new(discoverytest.Recorder)); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}
