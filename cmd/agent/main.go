// Command agent is Gatehouse: one process a host that learns who the backends
// of each service are, checks each backend once, keeps selectors built, and
// forwards local TCP connections through them.
//
// # Usage
//
//	gatehouse run -config-file gatehouse.hcl
//	gatehouse validate -config-file gatehouse.hcl
//	gatehouse clusters
//	gatehouse demo
//	gatehouse version
//	gatehouse completion bash
//
// and, of an agent that runs, by its admin interface:
//
//	gatehouse reload
//	gatehouse drain
//	gatehouse health
//	gatehouse endpoints [-cluster CLUSTER]
//	gatehouse connections
//	gatehouse enable CLUSTER ADDRESS
//	gatehouse disable CLUSTER ADDRESS
//	gatehouse log-level [LEVEL]
//	gatehouse debug
//	gatehouse top
//	gatehouse simulate -cluster NAME -remove ADDRESS -add ADDRESS
//	gatehouse explain -cluster NAME -selector NAME -key TEXT
//
// Exit codes: 0 fine, 1 runtime failure, 2 configuration or usage, 3 a
// listener can't be opened.
//
// A panic that is not contained exits with 2 too, and with the stacks.
//
// # Concurrency
//
// The agent type starts every part and waits for all of them; a part that
// fails ends the others. See ARCHITECTURE.md for the goroutines.
//
// A reload runs in one goroutine, one after the other. What can fail comes first:
// what it needs of clients is made, then the node takes up clusters and listeners
// or refuses them as a whole, and then the clients are exchanged, each in its
// place, from which sources go on with the next one.
//
// # Limitations
//
// What only a restart can change is named by a reload, and stays as it was. The
// package is larger than others: it has all commands, each in files of its own.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hashicorp/cli"

	"gatehouse.internal/internal/hcltext"
)

// The exit codes.
const (
	exitOK      = 0
	exitRuntime = 1
	exitConfig  = 2
	exitBind    = 3
)

// version is the release, set by the linker.
var version = ""

// versionText returns the release, or what the Go tool knows of the build.
func versionText() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "(devel)"
}

func main() { os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr)) }

// command is a cli.Command that tells its flags, which are completed.
type command interface {
	cli.Command
	flagSet() *flag.FlagSet
}

func realMain(args []string, stdout, stderr io.Writer) int {
	all := map[string]command{
		"run":        &runCommand{stderr: stderr},
		"validate":   &validateCommand{stdout: stdout, stderr: stderr},
		"demo":       &demoCommand{stdout: stdout, stderr: stderr},
		"version":    &versionCommand{stdout: stdout, stderr: stderr},
		"completion": &completionCommand{stdout: stdout, stderr: stderr},
	}
	for _, c := range askCommands(stdout, stderr) {
		all[c.name] = c
	}
	c := &cli.CLI{
		Name: "gatehouse", Version: versionText(), Args: args,
		HelpFunc: cli.BasicHelpFunc("gatehouse"), HelpWriter: stdout, ErrorWriter: stderr,
		Autocomplete: true, AutocompleteNoDefaultFlags: true,
		Commands: make(map[string]cli.CommandFactory, len(all)),
	}
	for name, cmd := range all {
		c.Commands[name] = func() (cli.Command, error) { return completed{cmd}, nil }
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitRuntime
	}
	if code == 127 { // what the library returns for a command that it does not know
		if len(args) > 0 {
			fmt.Fprintf(stderr, "there is no command %q", args[0])
			if near := hcltext.Nearest(args[0], slices.Collect(maps.Keys(all))); near != "" {
				fmt.Fprintf(stderr, ": did you mean %q?", near)
			}
			fmt.Fprintln(stderr)
		}
		return exitConfig
	}
	return code
}

// helpText returns the text of -help for a command.
func helpText(usage string, fs *flag.FlagSet) string {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(usage) + "\n\nOptions:\n\n")
	out := fs.Output()
	fs.SetOutput(&b)
	fs.PrintDefaults()
	fs.SetOutput(out)
	return b.String()
}
