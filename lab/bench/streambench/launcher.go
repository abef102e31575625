package streambench

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// launcher starts the subjects of a run, and the upstream behind them.
type launcher struct {
	self, serve []string // commands: a role of this binary, and the router
	peers       string   // folder of the other routers
	dir         string   // for configuration files
	// pin is put before a router's command, to keep it on one core.
	pin      []string
	progress io.Writer
	upstream *process
}

// role starts a role of this binary.
func (l *launcher) role(ctx context.Context, name string, args ...string) (*process, error) {
	return start(ctx, name, slices.Concat(l.self, []string{name}, args)...)
}

func (l *launcher) startSubject(ctx context.Context, name string) (*process, error) {
	switch name {
	case Direct:
		return &process{name: Direct, address: l.upstream.address}, nil
	case ReverseProxy, RelayLean:
		return l.role(ctx, name, l.upstream.address)
	case Kvpilot:
		return l.startRouter(ctx, Kvpilot)
	case Followed, Unfollowed:
		_, port, err := net.SplitHostPort(l.upstream.address)
		if err != nil {
			return nil, err
		}
		args := []string{"--replica", "http://" + l.upstream.address, "--replica", "http://localhost:" + port}
		if name == Unfollowed {
			args = append(args, "--set", "router.resume_streams=0")
		}
		return l.startServing(ctx, name, args...)
	case Nginx:
		return l.startNginx(ctx)
	case HAProxy:
		return l.startHAProxy(ctx)
	}
	return nil, fmt.Errorf("no such subject")
}

// quiet waits until the upstream has no stream left, and returns the number of streams that stay.
func (l *launcher) quiet(ctx context.Context) (int, error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		text, err := measure.Get(ctx, l.upstream.address, "/bench/active")
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(text)
		if err != nil || n == 0 || time.Now().After(deadline) {
			return n, err
		}
	}
}
