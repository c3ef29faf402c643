package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// debian is a root of its own in which packages are installed.
type debian struct {
	t    *testing.T
	root string
}

// newDebian returns a root that has nothing but the word that systemd is installed.
func newDebian(t *testing.T) *debian {
	t.Helper()
	d := &debian{t: t, root: t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "etc"} {
		if err := os.MkdirAll(filepath.Join(d.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	status := output(t, tool(t, "dpkg-query", "dpkg"), "--status", "systemd")
	write(t, filepath.Join(d.root, "var/lib/dpkg/status"), status+"\n")
	return d
}

// dpkg runs dpkg on the root; maintainers' scripts run with DPKG_ROOT, since the root
// has no shell.
func (d *debian) dpkg(args ...string) string {
	d.t.Helper()
	return output(d.t, tool(d.t, "dpkg", "dpkg"), append([]string{
		"--root=" + d.root, "--admindir=" + d.root + "/var/lib/dpkg", "--log=" + d.root + "/var/log/dpkg.log",
		"--force-script-chrootless", "--force-confold",
	}, args...)...)
}

func (d *debian) path(name string) string { return filepath.Join(d.root, name) }

func (d *debian) text(name string) string {
	d.t.Helper()
	b, err := os.ReadFile(d.path(name))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// buildDeb makes the package of a version.
func buildDeb(t *testing.T, version string) string {
	t.Helper()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"deploy", "docs", "xds", "LICENSE", "README.md", "ARCHITECTURE.md", "CHANGELOG.md"} {
		if err := os.Symlink(filepath.Join(top, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, program(t, staticBinary), filepath.Join(dir, "gatehouse"), 0o755)
	nfpm, err := nfpm()
	if err != nil {
		t.Fatal(err)
	}
	deb := filepath.Join(dir, "gatehouse.deb")
	cmd := exec.CommandContext(t.Context(), nfpm, "package", "-f", "deploy/packaging/nfpm.yaml", "-p", "deb", "-t", deb)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "VERSION="+version, "GOARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nfpm: %v\n%s", err, out)
	}
	return deb
}

// nfpm is what makes packages, of the version that its module pins.
var nfpm = builtIn("nfpm", "nfpm", "github.com/goreleaser/nfpm/v2/cmd/nfpm")

// The package is installed, upgraded, removed and purged: what the operator has changed
// stays until it is purged.
func TestDebianPackage(t *testing.T) {
	needsServer(t)
	if os.Getuid() != 0 {
		t.Fatal("dpkg takes root")
	}
	tool(t, "systemd-sysusers", "systemd") // for the maintainer's scripts
	one, two := buildDeb(t, "0.1.0"), buildDeb(t, "0.2.0")
	d := newDebian(t)

	d.dpkg("--install", one)
	for name, mode := range map[string]os.FileMode{
		"usr/bin/gatehouse": 0o755, "usr/lib/systemd/system/gatehouse.service": 0o644, "usr/lib/systemd/system/gatehouse.socket": 0o644,
		"usr/lib/sysusers.d/gatehouse.conf": 0o644, "usr/lib/tmpfiles.d/gatehouse.conf": 0o644,
		"etc/gatehouse.d": 0o750, "etc/gatehouse.d/gatehouse.hcl": 0o640, "etc/gatehouse.d/gatehouse.env": 0o640,
		"var/lib/gatehouse": 0o700, "usr/share/doc/gatehouse/copyright": 0o644, "usr/share/doc/gatehouse/docs/operations.md": 0o644,
	} {
		if fi, err := os.Stat(d.path(name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", name, fi, err, mode)
		}
	}
	isStatic(t, d.path("usr/bin/gatehouse"))
	if !strings.Contains(d.text("etc/passwd"), "gatehouse:") {
		t.Error("there is no user")
	}
	if service := d.text("usr/lib/systemd/system/gatehouse.service"); !strings.Contains(service, "ExecStart=/usr/bin/gatehouse ") {
		t.Error("the unit starts another program than the package has")
	}
	if wants, _ := filepath.Glob(d.path("etc/systemd/system/*.wants/*")); len(wants) > 0 {
		t.Errorf("the installation has enabled %q", wants)
	}

	// What pages of the package lead to is in the package.
	docs, err := filepath.Glob(d.path("usr/share/doc/gatehouse/docs/*.md"))
	if err != nil || len(docs) < 5 {
		t.Errorf("%d pages, %v", len(docs), err)
	}
	for _, page := range append(docs, d.path("usr/share/doc/gatehouse/README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range docsLink.FindAllStringSubmatch(string(text), -1) {
			name, _, _ := strings.Cut(m[1], "#")
			if !strings.HasPrefix(name, "http") && !exists(filepath.Join(filepath.Dir(page), name)) {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			}
		}
	}

	const changed = "# the operator's own\n"
	write(t, d.path("etc/gatehouse.d/gatehouse.hcl"), changed)
	write(t, d.path("var/lib/gatehouse/kept"), "learnt")
	write(t, d.path("usr/bin/gatehouse"), "old")
	d.dpkg("--install", two)
	if status := output(t, tool(t, "dpkg-query", "dpkg"), "--admindir="+d.root+"/var/lib/dpkg", "--show", "--showformat=${Version} ${db:Status-Status}", "gatehouse"); status != "0.2.0 installed" {
		t.Errorf("after the upgrade it is %q", status)
	}
	isStatic(t, d.path("usr/bin/gatehouse"))
	if d.text("etc/gatehouse.d/gatehouse.hcl") != changed || d.text("var/lib/gatehouse/kept") != "learnt" {
		t.Error("the upgrade has touched what is the operator's")
	}

	d.dpkg("--remove", "gatehouse")
	if exists(d.path("usr/bin/gatehouse")) || d.text("etc/gatehouse.d/gatehouse.hcl") != changed || d.text("var/lib/gatehouse/kept") != "learnt" {
		t.Error("a removal is to leave the configuration and what was learnt, and nothing else")
	}
	d.dpkg("--purge", "gatehouse")
	for _, name := range []string{"etc/gatehouse.d", "var/lib/gatehouse", "usr/share/doc/gatehouse"} {
		if exists(d.path(name)) {
			t.Errorf("after the purge there is %s", name)
		}
	}
}
