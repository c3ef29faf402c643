//go:build !linux

package main

import "os"

// notifyUpgrade does nothing: a takeover is for Linux only.
func notifyUpgrade(chan<- os.Signal) {}
