// Package test drives the built binary and the public packages against real
// parts: a go-control-plane server, TCP backends, files, signals.
package test
