// Package config turns what an operator writes, HCL or JSON of the same
// schema, into typed values. It finds every mistake at once and says of each
// where it is and what to do.
//
// # Usage
//
//	cfg, err := config.Load(config.Options{
//		Paths:    []string{"/etc/gatehouse.d"},
//		Hostname: host,
//		Env:      os.LookupEnv,
//		Flags:    []config.Flag{{Name: "-log-level", Path: "log.level", Value: "debug"}},
//	})
//	if errs, ok := errors.AsType[config.Errors](err); ok {
//		errs.Print(os.Stderr)
//	}
//
// The order is: defaults, files as given, environment, flags; what comes later
// wins. That goes for each argument of a single block (node, admin, gate, and
// so on) by itself, so one file may set admin.address and a later one xds.
// A cluster or listener comes whole from one file; a second one of the same
// name is a mistake, and so is anything that stands twice in one file. A
// directory stands for its *.hcl and *.json files in the order of their names.
//
// Every plain argument, no list and no object, of a single block has a variable:
// log.level is GATEHOUSE_LOG_LEVEL, node.locality.zone is
// GATEHOUSE_NODE_LOCALITY_ZONE. An empty variable counts as not set. Consul's own
// variables stand between these and the files: see Consul.
//
// The struct tags of the types are the schema, the only one there is: decoder,
// defaults, ranges and hints come from them.
//
//	hcl      name; "name,block" for a block, ",label" for a block's label;
//	         an argument "name,kind" and a label with an enum choose which
//	         arguments a block has
//	default  the value as text, where it is not the zero value
//	range    "least..most", either may be absent
//	enum     the allowed words, separated by |
//	for      the kind that the argument belongs to
//	env      another variable, below GATEHOUSE_*
//	required that it must be set, and not be empty
//	reload   that a reload can change it, and all in it; see Config.Reload
//
// The comments of the types and fields, up to their first empty line, are the text
// of docs/configuration.md, and each file in testdata/docs is the example of a
// block there; a test keeps all of it. A field without a comment is covered by that
// of the field before it.
//
// # Concurrency
//
// Load may be called from anywhere; it keeps nothing between calls. What it
// returns is plain data, to be compared with reflect.DeepEqual, and nobody
// writes to it later: a reload compares what was read with what is in force.
//
// # Limitations
//
// The package is larger than others: most of it is the schema, with what each setting
// means.
//
// Values are literal: references, functions and operators are refused. A file
// is at most 4 MiB. Symbolic links in a directory are refused rather than
// followed, so a link that is meant has to be named as a file; names that begin
// with a dot are passed over.
//
// HCL puts each argument on a line of its own: in one line a block holds at
// most one argument.
//
// Files and sockets that are named in a configuration are not looked at, but
// for xds.bootstrap and the files of tls blocks if Options says so: without that
// it can be checked on another machine. But a socket_mark is a mistake where the
// process that checks may not set one, if Options says how to find out.
//
// A line of a file that seems to have a secret in it is not shown with a
// mistake, only its place.
//
// # Why not gohcl
//
// It has no defaults, ranges, words or kinds, and it stops at the first mistake
// of each block.
package config
