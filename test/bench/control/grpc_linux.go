package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"gatehouse.internal/test/bench/forward"
)

// peer is a program of grpc-go with a channel that has all clusters.
type peer struct {
	*forward.Program
	server  *server
	in      io.WriteCloser
	answers chan string // closed at the end
	none    bool        // there are no clusters
}

// startGRPC starts the peer of a Spec.
func startGRPC(s Spec, server *server) (*peer, error) {
	cmd := exec.Command(s.Exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf(`GRPC_XDS_BOOTSTRAP_CONFIG={"xds_servers":[{"server_uri":"%s","channel_creds":[{"type":"insecure"}]}],"node":{"id":%q}}`, server.addr, node))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &peer{server: server, in: in, answers: make(chan string, 1), none: s.Clusters == 0}
	if p.Program, err = forward.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.answers <- lines.Text()
		}
	}()
	return p, nil
}

func (p *peer) program() process { return p.Program }

func (p *peer) stop() {
	p.Stop()
	for range p.answers {
	}
}

// ready waits until the assignments of all clusters were accepted: the server sends
// none before it was asked for all.
func (p *peer) ready(ctx context.Context) error {
	if p.none {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := p.do(ctx, "connect"); err != nil {
		return err
	}
	refused, err := take(ctx, p.server.answers, "the clusters were not accepted")
	if err != nil {
		return err
	}
	return refused
}

// do has the program do something, and returns its answer.
func (p *peer) do(ctx context.Context, what string) (string, error) {
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		return "", err
	}
	answer, err := take(ctx, p.answers, "no answer to "+strconv.Quote(what))
	if reason, failed := strings.CutPrefix(answer, "error: "); err == nil && failed {
		err = fmt.Errorf("%s: %s", what, reason)
	}
	return answer, err
}

// pick makes RPCs, one after the other. It returns when the endpoint was dialled, also
// where ctx has ended before.
func (p *peer) pick(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, err := p.do(ctx, "pick "+at.String())
	return err
}

// heap returns what is in use after a collection. A ring's part is not known.
func (p *peer) heap(ctx context.Context, _ int) (h heap, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := p.do(ctx, "heap")
	if err != nil {
		return h, err
	}
	h.live, err = strconv.ParseFloat(answer, 64)
	return h, err
}

// taken is not known of it.
func (p *peer) taken(context.Context) (sets, builds float64, err error) { return 0, 0, nil }
