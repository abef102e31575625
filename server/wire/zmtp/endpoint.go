package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// keepAlive finds dead hosts that neither answer nor refuse.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// splitEndpoint splits a ZeroMQ endpoint ("tcp://host:port", "ipc://path") into the arguments of package net.
// A host of "*" becomes the wildcard address. Other transports are an error.
func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return "", "", fmt.Errorf("endpoint %q is not of the form tcp://host:port or ipc://path", endpoint)
	}
	switch scheme {
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return "", "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		if host == "*" {
			host = ""
		}
		return "tcp", net.JoinHostPort(host, port), nil
	case "ipc":
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("endpoint %q: transport %q is not supported", endpoint, scheme)
}

// Dial connects to endpoint and shakes hands, within Params.HandshakeTimeout.
func Dial(ctx context.Context, endpoint string, p Params) (*Conn, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	p = p.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, p.HandshakeTimeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	nc, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", endpoint, err)
	}
	return shakeHands(ctx, nc, p)
}

// Listen opens endpoint for Serve. The socket file that a dead process left behind an ipc
// endpoint is replaced.
func Listen(ctx context.Context, endpoint string) (net.Listener, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := config.Listen(ctx, network, address)
	if err != nil && network == "unix" && abandoned(ctx, address) {
		if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		ln, err = config.Listen(ctx, network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return ln, nil
}

// abandoned reports whether path is a socket without a listener.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	dialer := net.Dialer{Timeout: time.Second}
	nc, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		hangUp(nc)
		return false
	}
	return ctx.Err() == nil
}
