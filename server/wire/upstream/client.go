package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/http1"
)

// Params are the parts of a Client.
type Params struct {
	Scope scope.Scope
	// Dial opens TCP connections; nil is package net's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// PlainSockets reads and writes with calls that the scheduler knows of (package socket).
	PlainSockets bool
}

// Client sends requests to replicas. It is safe for concurrent use.
type Client struct {
	cfg       atomic.Pointer[Config]
	log       *slog.Logger
	metrics   *metrics
	transport *transport
	upgrades  *upgrades
}

// New makes a client; it opens nothing. cfg must be valid.
func New(cfg Config, p Params) *Client {
	c := &Client{log: p.Scope.Log(), metrics: newMetrics(p.Scope.Meters())}
	c.cfg.Store(&cfg)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.upgrades = newUpgrades(&cfg, p.Dial)
	c.transport = newTransport(&cfg, p, c.metrics)
	return c
}

// Update puts new timeouts in force, for exchanges that begin from now on. The other fields of cfg have no effect.
func (c *Client) Update(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	next := *c.cfg.Load()
	next.DialTimeout, next.ResponseHeaderTimeout, next.StallTimeout = cfg.DialTimeout, cfg.ResponseHeaderTimeout, cfg.StallTimeout
	c.cfg.Store(&next)
	c.transport.update(&next)
	return nil
}

// Run closes idle connections, until ctx ends; then it closes all of them.
func (c *Client) Run(ctx context.Context) error {
	tick := time.NewTicker(max(c.cfg.Load().IdleTimeout/4, 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.transport.shut()
			return nil
		case <-tick.C:
			c.transport.prune(time.Now())
		}
	}
}

// Do sends the request and returns when the head of the response is there. When ctx ends, the
// request is aborted, also while its response is being read. Classify says what an error means.
//
// A connection that the replica closed while it was idle is replaced transparently.
func (c *Client) Do(ctx context.Context, t Target, r *Request) (*Response, error) {
	if err := checkRequest(t, r); err != nil {
		return nil, err
	}
	began := time.Now()
	resp, err := c.transport.do(ctx, t, r)
	c.metrics.answered(Classify(resp, err), time.Since(began))
	return resp, err
}

// checkRequest reports why the router cannot send the request.
func checkRequest(t Target, r *Request) error {
	switch {
	case t.Replica == nil:
		return errors.New("no replica to send to")
	case r.Stream == nil && r.StreamSize != 0:
		return errors.New("stream size without a stream")
	}
	return CheckLine(r.Method, r.Path, r.Query)
}

// CheckLine reports the fault that keeps a request's method, path or query from being written into a request line. The error is nil or an
// *UnsendableError.
func CheckLine(method, path, query string) error {
	switch {
	case !http1.ValidName(method):
		return &UnsendableError{"method"}
	case path == "" || path[0] != '/' || !http1.ValidTarget(path):
		return &UnsendableError{"path"}
	case !http1.ValidTarget(query):
		return &UnsendableError{"query"}
	}
	return nil
}
