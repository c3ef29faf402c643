//go:build !linux

package main

import (
	"errors"
	"time"
)

type clock struct{}

func (clock) punctual() {}

func (clock) now() int64 { return time.Now().UnixNano() }

func (c clock) until(at int64) {
	if d := at - c.now(); d > 0 {
		<-time.After(time.Duration(d))
	}
}

var errNotLinux = errors.New("resident memory is known on Linux only")

func resident() (rss, peak int, err error) { return 0, 0, errNotLinux }

func forgetPeak() error { return errNotLinux }

func available() int { return 0 }
