package test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"
)

const nomadFiles = "../deploy/nomad"

// systemJob returns the agent's job, its one group and task.
func systemJob(t *testing.T) (*api.Job, *api.TaskGroup, *api.Task) {
	t.Helper()
	job := readJob(t, filepath.Join(nomadFiles, "gatehouse.nomad.hcl"))
	if len(job.TaskGroups) != 1 || len(job.TaskGroups[0].Tasks) != 1 {
		t.Fatal("want one group of one task")
	}
	return job, job.TaskGroups[0], job.TaskGroups[0].Tasks[0]
}

// agentConfig renders the agent's configuration as Nomad does.
func agentConfig(t *testing.T, task *api.Task) string {
	t.Helper()
	env := map[string]string{"node.unique.name": "node-7", "node.region": "eu", "node.datacenter": "eu-1a"}
	tmpl, err := template.New("").Funcs(template.FuncMap{"env": func(name string) (string, error) {
		v, ok := env[name]
		if !ok {
			return "", fmt.Errorf("the test does not know %s", name)
		}
		return v, nil
	}}).Parse(*task.Templates[0].EmbeddedTmpl)
	var out strings.Builder
	if err == nil {
		err = tmpl.Execute(&out, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The agent's job is what Nomad's own types take, and its parts fit each other and the
// agent.
func TestNomadJob(t *testing.T) {
	job, group, task := systemJob(t)
	if *job.Type != "system" || group.Networks[0].Mode != "host" || task.Config["network_mode"] != cty.StringVal("host") {
		t.Errorf("want a system job on the host's network: %+v", group.Networks[0])
	}
	update, restart := group.Update, group.RestartPolicy
	if *update.MaxParallel != 1 || !*update.AutoRevert || *update.HealthCheck != "checks" || *restart.Mode != "delay" {
		t.Errorf("update %+v, restart %+v", update, restart)
	}
	checks := map[string]api.ServiceCheck{}
	for _, c := range group.Services[0].Checks {
		checks[c.Path] = c
	}
	if len(checks) != 2 || checks["/ready"].CheckRestart != nil || checks["/live"].CheckRestart == nil {
		t.Errorf("checks %+v: /live alone may restart the agent", checks)
	}
	if group.Services[0].Provider != "consul" || task.Consul == nil || len(task.Identities) != 1 || task.Identities[0].Name != "consul_default" ||
		!slices.Equal(task.Identities[0].Audience, []string{"consul.io"}) || task.Identities[0].ChangeSignal != "SIGHUP" {
		t.Errorf("identities %+v", task.Identities)
	}
	if tm := task.Templates[0]; *tm.ChangeMode != "signal" || *tm.ChangeSignal != "SIGHUP" {
		t.Errorf("a change of the template is to be a reload: %+v", tm)
	}

	// The configuration is valid, and the job gives it the ports and the time it needs.
	needsServer(t)
	config := agentConfig(t, task)
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, config)
	cmd := exec.Command(program(t, fastBinary), "validate", "-config-file", file)
	cmd.Env = append(os.Environ(), "GATEHOUSE_STATE_DIR="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	setting := func(name string) string {
		m := regexp.MustCompile(name + `\s*= "([^"]*)"`).FindStringSubmatch(config)
		if m == nil {
			t.Fatalf("the configuration has no %s", name)
		}
		return m[1]
	}
	drain, err := time.ParseDuration(setting("drain_timeout"))
	if err != nil || task.KillSignal != "SIGTERM" || *task.KillTimeout < drain+10*time.Second {
		t.Errorf("%s after %v, and the drain takes %v", task.KillSignal, *task.KillTimeout, drain)
	}
	var admin *api.Port
	for i, p := range group.Networks[0].DynamicPorts {
		if p.Label == group.Services[0].PortLabel {
			admin = &group.Networks[0].DynamicPorts[i]
		}
		if !strings.Contains(config, fmt.Sprintf(":%d\"", p.Value)) {
			t.Errorf("nothing listens on port %s, %d", p.Label, p.Value)
		}
	}
	if admin == nil || fmt.Sprintf("127.0.0.1:%d", admin.Value) != setting("admin { address") {
		t.Errorf("the service's port is %+v, the admin interface at %s", admin, setting("admin { address"))
	}
	for _, path := range []string{setting("state_dir"), "/run/gatehouse"} {
		if !slices.ContainsFunc(task.VolumeMounts, func(m *api.VolumeMount) bool { return *m.Destination == path }) {
			t.Errorf("%s is no volume of the task", path)
		}
	}

	// What the job wants of the client is what client.hcl gives.
	parsed, diags := hclparse.NewParser().ParseHCLFile(filepath.Join(nomadFiles, "client.hcl"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	client := parsed.Body.(*hclsyntax.Body).Blocks[0].Body
	given := map[string]bool{}
	for _, b := range client.Blocks {
		given[b.Type+" "+b.Labels[0]] = true
	}
	for _, v := range group.Volumes {
		if !given["host_volume "+v.Source] {
			t.Errorf("client.hcl has no volume %s", v.Source)
		}
	}
	if !given["host_network "+admin.HostNetwork] {
		t.Errorf("client.hcl has no network %s", admin.HostNetwork)
	}
	most, diags := client.Attributes["max_kill_timeout"].Expr.Value(nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	if d, err := time.ParseDuration(most.AsString()); err != nil || d < *task.KillTimeout {
		t.Errorf("max_kill_timeout %v, %v", d, err)
	}
}

// bridgeEnv makes this program the node of TestNomadBridge, taskEnv a task on its bridge.
const (
	bridgeEnv = "GATEHOUSE_TEST_BRIDGE"
	taskEnv   = "GATEHOUSE_TEST_TASK"
)

// serveTask waits until its network is there, and tells for each address of taskEnv who
// answers at it.
func serveTask() {
	io.Copy(io.Discard, os.Stdin)
	answers := make(map[string]string)
	for _, addr := range strings.Fields(os.Getenv(taskEnv)) {
		network, at := "tcp", addr
		if path, ok := strings.CutPrefix(addr, "unix://"); ok {
			network, at = "unix", path
		}
		c, err := net.DialTimeout(network, at, patience)
		if err != nil {
			answers[addr] = "error: " + err.Error()
			continue
		}
		who, err := askOn(c)
		if err != nil {
			who = "error: " + err.Error()
		}
		answers[addr] = who
		c.Close()
	}
	json.NewEncoder(os.Stdout).Encode(answers)
	os.Exit(0)
}

// ways are the addresses by which the second job's groups reach the agent.
func ways(t *testing.T) map[string]string {
	t.Helper()
	job := readJob(t, filepath.Join(nomadFiles, "bridge.nomad.hcl"))
	found := make(map[string]string)
	for _, g := range job.TaskGroups {
		if g.Networks[0].Mode != "bridge" {
			t.Errorf("group %s is not on the bridge", *g.Name)
		}
		addr := g.Tasks[0].Env["WEB_ADDRESS"]
		if path, ok := strings.CutPrefix(addr, "unix://"); ok {
			mounts := g.Tasks[0].VolumeMounts
			if len(mounts) != 1 || *mounts[0].Destination != filepath.Dir(path) || g.Volumes[*mounts[0].Volume].Source != "gatehouse-run" {
				t.Errorf("group %s does not mount where %s is", *g.Name, path)
			}
		}
		found[*g.Name] = addr
	}
	if !slices.Equal(slices.Sorted(maps.Keys(found)), []string{"by-address", "by-socket"}) {
		t.Fatalf("ways %v", found)
	}
	return found
}

// Tasks on Nomad's bridge reach the agent of the node by its unix socket and by the
// bridge's address, and not by 127.0.0.1: in network namespaces as Nomad makes them, with
// the configuration of the job and the addresses of the second one.
func TestNomadBridge(t *testing.T) {
	needsServer(t)
	ip := tool(t, "ip", "iproute2")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(bridgeEnv) == "" {
		if os.Getuid() != 0 {
			t.Fatal("network namespaces with a bridge take root")
		}
		cmd := exec.CommandContext(t.Context(), exe, "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), bridgeEnv+"="+program(t, fastBinary))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("in a network namespace: %v\n%s", err, out)
		}
		return
	}

	_, _, task := systemJob(t)
	addresses, run := ways(t), t.TempDir()
	host, _, err := net.SplitHostPort(addresses["by-address"])
	if err != nil {
		t.Fatal(err)
	}
	output(t, ip, "link", "set", "lo", "up")
	output(t, ip, "link", "add", "nomad", "type", "bridge")
	output(t, ip, "address", "add", host+"/20", "dev", "nomad")
	output(t, ip, "link", "set", "nomad", "up")

	b := startBackend(t)
	config := strings.NewReplacer(
		`discovery "consul" { service = "web" }`, fmt.Sprintf(`discovery "static" { endpoints = [%q] }`, b.addr),
		"/run/gatehouse", run, "/var/lib/gatehouse", t.TempDir(), "/secrets/consul_token", os.DevNull,
	).Replace(agentConfig(t, task))
	file := filepath.Join(t.TempDir(), "gatehouse.hcl")
	write(t, file, config)
	args := []string{"-log-json"}
	for _, arg := range slices.Backward(task.Config["args"].(cty.Value).AsValueSlice()) {
		args = append([]string{strings.Replace(arg.AsString(), "/local/gatehouse.hcl", file, 1)}, args...)
	}
	cmd := exec.Command(os.Getenv(bridgeEnv), args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	p := startCommand(t, cmd)
	p.awaitReady()

	socket := strings.Replace(addresses["by-socket"], "/run/gatehouse", run, 1)
	const loopback = "127.0.0.1:8080"
	if who, err := ask(t.Context(), loopback); err != nil || who != b.addr {
		t.Errorf("on the node itself: %q, %v", who, err)
	}
	app := exec.CommandContext(t.Context(), exe)
	app.Env = append(os.Environ(), taskEnv+"="+strings.Join([]string{loopback, addresses["by-address"], socket}, " "))
	app.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var out, stderr strings.Builder
	app.Stdout, app.Stderr = &out, &stderr
	goOn, err := app.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprint(app.Process.Pid)
	output(t, ip, "link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", pid)
	output(t, ip, "link", "set", "veth0", "master", "nomad")
	output(t, ip, "link", "set", "veth0", "up")
	inside := tool(t, "nsenter", "util-linux")
	for _, line := range []string{"link set lo up", "address add 172.26.64.2/20 dev eth0", "link set eth0 up"} {
		output(t, inside, append([]string{"--net=/proc/" + pid + "/ns/net", ip}, strings.Fields(line)...)...)
	}
	goOn.Close()
	if err := app.Wait(); err != nil {
		t.Fatalf("the task: %v\n%s", err, &stderr)
	}
	var answers map[string]string
	if err := json.Unmarshal([]byte(out.String()), &answers); err != nil {
		t.Fatalf("the task says %q: %v", &out, err)
	}
	for _, way := range []string{addresses["by-address"], socket} {
		if answers[way] != b.addr {
			t.Errorf("by %s: %s", way, answers[way])
		}
	}
	if !strings.Contains(answers[loopback], "connection refused") {
		t.Errorf("by 127.0.0.1: %s", answers[loopback])
	}
}
