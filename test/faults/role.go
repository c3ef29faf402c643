//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

// roleFlag, followed by a role and its arguments, makes this program one of the
// processes of a fault. It is not for people.
const roleFlag = "-role"

// play is the process's whole life.
func play(args []string) error {
	switch {
	case len(args) == 3 && (args[0] == "backend" || args[0] == "forgetful"):
		return backendRole(args[1], args[2], args[0] == "forgetful")
	case len(args) == 3 && args[0] == "control":
		return controlRole(args[1], args[2])
	}
	return fmt.Errorf("no role %q", args)
}

// backendRole answers at an address, which it prints. When a forgetful one is gone
// its kernel knows nothing of its connections any more, as after a power cut.
func backendRole(name, address string, forgetful bool) error {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	go func() { // the fault that has started it is gone when its input ends
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if forgetful {
			c.(*net.TCPConn).SetLinger(0)
		}
		go serve(c.(*net.TCPConn), name)
	}
}

// serve answers the lines of one connection:
//
//	ping      pong, for checks
//	ask N     the name and N
//	echo      the name, and then all that comes
//	flood N   N bytes, see pattern, and the end
//	sink N    whether the next N bytes are right
func serve(c *net.TCPConn, name string) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		word, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "ping":
			_, err = io.WriteString(c, "pong")
		case "ask":
			_, err = fmt.Fprintf(c, "%s %s\n", name, arg)
		case "echo":
			if _, err := fmt.Fprintln(c, name); err == nil {
				io.Copy(c, r)
			}
			return
		case "flood":
			n, _ := strconv.ParseInt(arg, 10, 64)
			io.Copy(c, io.LimitReader(new(pattern), n))
			return
		case "sink":
			n, _ := strconv.ParseInt(arg, 10, 64)
			got, right := new(pattern).matches(io.LimitReader(r, n))
			_, err = fmt.Fprintln(c, got == n && right)
		default:
			return
		}
		if err != nil {
			return
		}
	}
}

// pattern is bytes without end that tell their place.
type pattern struct{ at int64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = patternAt(p.at + int64(i))
	}
	p.at += int64(len(b))
	return len(b), nil
}

func patternAt(at int64) byte { return byte(at) ^ byte(at>>8) ^ byte(at>>16) }

// matches reads to the end and says how many bytes came, and if they were right.
func (p *pattern) matches(r io.Reader) (n int64, right bool) {
	right = true
	for b := make([]byte, 64<<10); ; {
		k, err := r.Read(b)
		for i, x := range b[:k] {
			right = right && x == patternAt(p.at+int64(i))
		}
		p.at += int64(k)
		if err != nil {
			return p.at, right && err == io.EOF
		}
	}
}
