//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "faults: needs Linux: the faults are made by its namespaces, nftables and signals")
	os.Exit(1)
}
