package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/posener/complete"

	"gatehouse.internal/cmd/agent/internal/admin"
)

// completed is a command whose flags a shell completes.
type completed struct{ command }

// AutocompleteFlags implements cli.CommandAutocomplete.
func (c completed) AutocompleteFlags() complete.Flags {
	flags := make(complete.Flags)
	c.flagSet().VisitAll(func(f *flag.Flag) {
		var values complete.Predictor = complete.PredictAnything
		if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
			values = complete.PredictNothing
		}
		switch f.Name {
		case "config-file":
			values = complete.PredictFiles("*")
		case "config-dir":
			values = complete.PredictDirs("*")
		case "log-level":
			values = complete.PredictSet(admin.Levels()...)
		}
		flags["-"+f.Name] = values
	})
	return flags
}

// AutocompleteArgs implements cli.CommandAutocomplete.
func (c completed) AutocompleteArgs() complete.Predictor {
	if p, ok := c.command.(interface{ predict() complete.Predictor }); ok {
		return p.predict()
	}
	if ask, ok := c.command.(*askCommand); ok && ask.name == "log-level" {
		return complete.PredictSet(admin.Levels()...)
	}
	return complete.PredictNothing
}

// completionCommand prints what has a shell complete commands and flags. The shell
// runs the program for each completion, so it stays true when that is replaced.
type completionCommand struct{ stdout, stderr io.Writer }

var completions = map[string]string{
	"bash": "complete -o default -C gatehouse gatehouse\n",
	"zsh":  "autoload -U +X bashcompinit && bashcompinit\ncomplete -o default -C gatehouse gatehouse\n",
	"fish": `function __complete_gatehouse
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct)
    and set COMP_LINE "$COMP_LINE "
    gatehouse
end
complete -f -c gatehouse -a "(__complete_gatehouse)"
`,
}

// Synopsis implements cli.Command.
func (c *completionCommand) Synopsis() string { return "Prints what has a shell complete commands" }

// Help implements cli.Command.
func (c *completionCommand) Help() string {
	return helpText(`
Usage: gatehouse completion bash|zsh|fish

  Prints a script that has the shell complete commands and flags, as for
  ~/.bashrc: source <(gatehouse completion bash). gatehouse must be in the PATH.`, c.flagSet())
}

func (c *completionCommand) flagSet() *flag.FlagSet {
	return newFlagSet("completion", c.stderr, c.Help)
}

func (c *completionCommand) predict() complete.Predictor {
	return complete.PredictSet("bash", "zsh", "fish")
}

// Run implements cli.Command.
func (c *completionCommand) Run(args []string) int {
	fs := c.flagSet()
	if ok, code := parseFlags(fs, args, 1); !ok {
		return code
	}
	script, ok := completions[fs.Arg(0)]
	if !ok {
		fmt.Fprintf(c.stderr, "completion needs a shell: bash, zsh or fish, got %q\n", fs.Arg(0))
		fs.Usage()
		return exitConfig
	}
	io.WriteString(c.stdout, script)
	return exitOK
}
