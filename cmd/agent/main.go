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
//	gatehouse endpoints -cluster web
//	gatehouse version
//
// Exit codes: 0 fine, 1 runtime failure, 2 configuration or usage, 3 a
// listener can't be opened.
//
// # Concurrency
//
// The agent type starts every part and waits for all of them; a part that
// fails ends the others. See ARCHITECTURE.md for the goroutines.
//
// # Limitations
//
// The configuration is read once, at the start.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/cli"
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

func realMain(args []string, stdout, stderr io.Writer) int {
	c := &cli.CLI{
		Name: "gatehouse", Version: versionText(), Args: args,
		HelpFunc: cli.BasicHelpFunc("gatehouse"), HelpWriter: stdout, ErrorWriter: stderr,
		Commands: map[string]cli.CommandFactory{
			"run":       func() (cli.Command, error) { return &runCommand{stderr: stderr}, nil },
			"validate":  func() (cli.Command, error) { return &validateCommand{stdout: stdout, stderr: stderr}, nil },
			"clusters":  func() (cli.Command, error) { return clustersCommand(stdout, stderr), nil },
			"demo":      func() (cli.Command, error) { return &demoCommand{stdout: stdout, stderr: stderr}, nil },
			"endpoints": func() (cli.Command, error) { return endpointsCommand(stdout, stderr), nil },
			"version":   func() (cli.Command, error) { return &versionCommand{stdout: stdout, stderr: stderr}, nil },
		},
	}
	code, err := c.Run()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitRuntime
	}
	if code == 127 { // what the library returns for a command that it does not know
		return exitConfig
	}
	return code
}

// help returns the text of -help for a command.
func help(usage string, flags func(io.Writer)) string {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(usage) + "\n\nOptions:\n\n")
	flags(&b)
	return b.String()
}
