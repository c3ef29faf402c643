package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyUpgrade has c get the signals that ask the agent to start its successor.
func notifyUpgrade(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }
