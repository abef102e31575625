package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// simReplica is one simulated replica and where it listens.
type simReplica struct {
	engine *enginesim.Engine
	url    string
	// events and replays have one ZMQ address per rank; empty without events.
	events, replays []string
}

// simPorts says where simulated replicas listen; a zero port takes any free one.
type simPorts struct {
	host         string
	http         int
	events       int // -1: no events
	replay       int // -1: no replay
	replicaShift int // added to all ports for each further replica
}

// newSimReplica opens the ports of replica number n and makes the replica.
func newSimReplica(ctx context.Context, cfg enginesim.Config, ports simPorts, n int, log *slog.Logger) (_ *simReplica, err error) {
	var opened []net.Listener
	defer func() {
		if err != nil {
			for _, ln := range opened {
				ln.Close()
			}
		}
	}()
	listen := func(base, shift int) (net.Listener, error) {
		port := 0
		if base > 0 {
			port = base + shift
		}
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(ports.host, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("open a port for the simulated replica: %w", err)
		}
		opened = append(opened, ln)
		return ln, nil
	}
	p := enginesim.Params{Log: log}
	if p.HTTP, err = listen(ports.http, n*ports.replicaShift); err != nil {
		return nil, err
	}
	r := &simReplica{url: "http://" + dialable(p.HTTP.Addr())}
	for rank := range cfg.Ranks {
		if ports.events < 0 {
			break
		}
		ln, err := listen(ports.events, n*cfg.Ranks+rank)
		if err != nil {
			return nil, err
		}
		p.Events = append(p.Events, ln)
		r.events = append(r.events, "tcp://"+dialable(ln.Addr()))
		if ports.replay < 0 {
			continue
		}
		if ln, err = listen(ports.replay, n*cfg.Ranks+rank); err != nil {
			return nil, err
		}
		p.Replays = append(p.Replays, ln)
		r.replays = append(r.replays, "tcp://"+dialable(ln.Addr()))
	}
	if r.engine, err = enginesim.New(cfg, p); err != nil {
		return nil, err
	}
	return r, nil
}

// dialable turns a wildcard address into one that this machine can dial.
func dialable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// runSims serves the replicas until ctx ends.
func runSims(ctx context.Context, list []*simReplica) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range list {
		group.Go(func() error { return r.engine.Run(ctx) })
	}
	return group.Wait()
}
