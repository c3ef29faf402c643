package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/url"
)

// explainCommand says how a connection gets its endpoint.
func explainCommand(stdout io.Writer) *askCommand {
	var asJSON bool
	query := make(url.Values)
	return &askCommand{
		name: "explain", synopsis: "Says which endpoint a connection would get, and why",
		usage: `
Usage: gatehouse explain -cluster NAME [-selector NAME] [-key TEXT] [options]

  Says how a running agent would choose the endpoint of a connection at this moment:
  the endpoints that the selection comes to, in order, which of them are candidates,
  and why the others are passed over. It is read from the very selector that serves,
  and takes nobody's turn. Of a cluster that consists of others it says which of these
  the load leads to, and how that one chooses.

  -key is what the listener's hash_on takes of a connection: for source_ip the
  client's address. Selectors other than ring_hash and maglev have no use for it; what
  they draw is another for each connection.`,
		flags: func(fs *flag.FlagSet) {
			jsonFlag(fs, &asJSON)
			for name, usage := range map[string]string{
				"cluster":  "the `name` of the cluster",
				"selector": "the `name` of one of its selectors; by default the first",
				"key":      "the `text` that is hashed; without it the hash is drawn",
			} {
				fs.Func(name, usage, func(s string) error {
					query.Set(name, s)
					return nil
				})
			}
		},
		check: func([]string) error {
			if query.Get("cluster") == "" {
				return errors.New("explain needs -cluster")
			}
			return nil
		},
		run: func(ctx context.Context, c *client, _ []string) (int, error) {
			if asJSON {
				query.Set("format", "json")
			}
			body, err := c.get(ctx, "/explain", query)
			if err != nil {
				return exitRuntime, err
			}
			stdout.Write(body)
			return exitOK, nil
		},
	}
}
