package main

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write what is expected in testdata anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"gatehouse": func() { os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// The commands as a shell sees them: what they print and their exit codes.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE COMMAND...")
				}
				err := ts.Exec(args[1], args[2:]...)
				got := "0"
				if err != nil {
					got = err.Error()
				}
				if got != args[0] && got != "exit status "+args[0] {
					ts.Fatalf("%v: %s, want exit status %s", args[1:], got, args[0])
				}
			},
			// await runs a command again and again until it succeeds.
			"await": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 1 {
					ts.Fatalf("usage: await COMMAND...")
				}
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for end := time.Now().Add(time.Minute); ; <-tick.C {
					if err := ts.Exec(args[0], args[1:]...); err == nil {
						return
					} else if time.Now().After(end) {
						ts.Fatalf("%v: %v", args, err)
					}
				}
			},
		},
	})
}
