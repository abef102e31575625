package extproc

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

const (
	// lookupLife is how long the address of a name is kept.
	lookupLife = 30 * time.Second
	// lookupTimeout bounds the time for which a request waits for a name's address.
	lookupTimeout = 2 * time.Second
	// mostNames bounds the names that are kept.
	mostNames = 4096
)

// endpoints names replicas by the addresses that gateways send requests to: an IP address and a port. It keeps those of names.
type endpoints struct {
	resolver *net.Resolver

	mu    sync.Mutex
	names map[string]lookup // guarded by mu
}

type lookup struct {
	ip string
	at time.Time
}

func newEndpoints() *endpoints {
	return &endpoints{resolver: net.DefaultResolver, names: map[string]lookup{}}
}

// of is the address of a replica; false when its name cannot be resolved.
func (e *endpoints) of(ctx context.Context, r *replica.Replica) (string, bool) {
	host, port := hostPort(r.URL)
	if _, err := netip.ParseAddr(host); err != nil {
		ip, ok := e.resolve(ctx, host)
		if !ok {
			return "", false
		}
		host = ip
	}
	return net.JoinHostPort(host, port), true
}

// resolve returns an IP address of a name. An old one is better than none.
func (e *endpoints) resolve(ctx context.Context, name string) (string, bool) {
	e.mu.Lock()
	known, ok := e.names[name]
	e.mu.Unlock()
	if ok && time.Since(known.at) < lookupLife {
		return known.ip, true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	list, err := e.resolver.LookupNetIP(ctx, "ip", name)
	if err != nil || len(list) == 0 {
		return known.ip, ok
	}
	best := list[0]
	for _, ip := range list {
		if ip.Unmap().Is4() { // gateways without IPv6 are more common than those without IPv4
			best = ip
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.names) >= mostNames {
		clear(e.names)
	}
	known = lookup{best.Unmap().String(), time.Now()}
	e.names[name] = known
	return known.ip, true
}

// find returns the replica at an address.
func (e *endpoints) find(ctx context.Context, s *registry.Snapshot, address string) (*replica.Replica, bool) {
	for _, r := range s.Replicas {
		if at, ok := e.of(ctx, r); ok && at == address {
			return r, true
		}
	}
	return nil, false
}

// hostPort splits a replica's base URL.
func hostPort(base string) (host, port string) {
	u, err := url.Parse(base)
	if err != nil {
		return "", ""
	}
	port = "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return strings.Trim(u.Hostname(), "[]"), cmp.Or(u.Port(), port)
}
