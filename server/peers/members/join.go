package members

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

const (
	// joinFirst and joinMost are the pauses between rounds of joining: they double from the first, and begin again when members change.
	joinFirst = 500 * time.Millisecond
	joinMost  = 15 * time.Second
	// joinAtOnce bounds the addresses that are tried at the same time.
	joinAtOnce = 8
	// lookupTimeout bounds the look-up of a name.
	lookupTimeout = 5 * time.Second
)

// join tries the configured addresses, and the addresses of members that died, again and again until ctx ends.
func (m *Members) join(ctx context.Context, list *memberlist.Memberlist, isOwn func(netip.AddrPort) bool) {
	wait := joinFirst
	for {
		m.joinRound(ctx, list, isOwn)
		m.mu.Lock()
		forgetDead(m.others, time.Now())
		m.mu.Unlock()
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		wait = min(2*wait, joinMost)
		select {
		case <-ctx.Done():
		case <-m.lost:
			wait = joinFirst
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// joinRound tries each address that is not a living member's.
func (m *Members) joinRound(ctx context.Context, list *memberlist.Memberlist, isOwn func(netip.AddrPort) bool) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, joinAtOnce)
	for at := range m.targets(ctx) {
		if _, alive := m.known(at); alive || isOwn(at) {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			m.joinOne(list, at)
		})
	}
	wg.Wait()
}

func (m *Members) joinOne(list *memberlist.Memberlist, at netip.AddrPort) {
	if _, err := list.Join([]string{at.String()}); err != nil {
		if isKeyError(err.Error()) {
			m.params.Refused.Refuse(refusals.Key, at.Addr().String(), "a router to join has another key: fleet.key must be the same on all", "address", at.String())
			return
		}
		m.params.Scope.Log().Debug("a router cannot be joined yet", "address", at.String(), "error", err)
		return
	}
	if member, _ := m.known(at); !member {
		m.params.Refused.Refuse(refusals.Join, at.String(), "an address to join is no member's own: fleet.join should name routers or a headless Service, not a Service or load balancer")
	}
}

// targets are the addresses to join: the settings' addresses, and members that died.
func (m *Members) targets(ctx context.Context) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, address := range m.config.Join {
		host, port, err := splitAddress(address)
		if err != nil {
			continue // Validate refuses it
		}
		ips, err := m.lookup(ctx, host)
		if err != nil {
			m.params.Scope.Log().Debug("a name to join is not known yet", "name", host, "error", err)
		}
		for _, ip := range ips {
			all[netip.AddrPortFrom(ip, uint16(port))] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.others {
		if other.State == Dead {
			all[other.gossip] = true
		}
	}
	return all
}

// lookup returns the addresses of a host: itself, when it is one.
func (m *Members) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := m.params.Resolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// isLocal returns a function that recognizes this router's own gossip addresses.
func isLocal(listening net.Addr, advertised netip.AddrPort) func(netip.AddrPort) bool {
	own, _ := netip.ParseAddrPort(listening.String())
	own = netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	return func(at netip.AddrPort) bool {
		if at == advertised || at == own {
			return true
		}
		if at.Port() != own.Port() || !own.Addr().IsUnspecified() {
			return false
		}
		if at.Addr().IsLoopback() {
			return true
		}
		local, err := net.InterfaceAddrs()
		if err != nil {
			return false
		}
		for _, a := range local {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == at.Addr() {
				return true
			}
		}
		return false
	}
}
