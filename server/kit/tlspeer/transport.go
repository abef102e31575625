package tlspeer

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

type identityKey struct{}

// With sets the identity with which the requests of ctx are sent.
func With(ctx context.Context, i *Identity) context.Context {
	if i == nil {
		return ctx
	}
	return context.WithValue(ctx, identityKey{}, i)
}

// mostIdentities bounds the transports that are kept; settings name a few.
const mostIdentities = 64

// Transports are HTTP transports, one for each Identity: a connection that was opened as one is never used as another. The
// context of a request says which, by With.
type Transports struct {
	base *http.Transport

	mu   sync.Mutex
	each map[*Identity]*http.Transport // guarded by mu
}

// NewTransports makes transports after the pattern of base, whose DialContext must be set.
func NewTransports(base *http.Transport) *Transports {
	return &Transports{base: base, each: map[*Identity]*http.Transport{}}
}

// RoundTrip implements http.RoundTripper.
func (t *Transports) RoundTrip(r *http.Request) (*http.Response, error) {
	i, _ := r.Context().Value(identityKey{}).(*Identity)
	resp, err := t.of(i).RoundTrip(r)
	return resp, Explain(err)
}

func (t *Transports) of(i *Identity) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found := t.each[i]; found != nil {
		return found
	}
	if len(t.each) >= mostIdentities {
		t.drop()
	}
	made := t.base.Clone()
	limit := made.TLSHandshakeTimeout
	dial := made.DialContext
	made.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return i.dial(ctx, dial, limit, network, address)
	}
	t.each[i] = made
	return made
}

// dial opens a connection and speaks TLS on it, within limit.
func (i *Identity) dial(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), limit time.Duration, network, address string) (net.Conn, error) {
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if limit > 0 {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = bounded
	}
	secured, err := i.Handshake(ctx, conn, host)
	if err != nil { // a nil *tls.Conn is no nil net.Conn
		return nil, err
	}
	return secured, nil
}

// drop forgets all transports; connections in use end with their requests. t.mu is held.
func (t *Transports) drop() {
	for i, one := range t.each {
		one.CloseIdleConnections()
		delete(t.each, i)
	}
}

// CloseIdleConnections is for http.Client.
func (t *Transports) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.each {
		one.CloseIdleConnections()
	}
}
