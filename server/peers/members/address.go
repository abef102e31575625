package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// advertised is the gossip address that the other members use: the configured one, or the listener's, or the address of the interface
// towards the default route.
func (m *Members) advertised(ctx context.Context, listening net.Addr) (netip.AddrPort, error) {
	own, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("fleet.listen: %w", err)
	}
	if m.config.Advertise == "" {
		ip := own.Addr().Unmap()
		if ip.IsUnspecified() {
			if ip, err = outgoing(ctx); err != nil {
				return netip.AddrPort{}, fmt.Errorf("fleet.advertise: must be set: %w", err)
			}
		}
		return netip.AddrPortFrom(ip, own.Port()), nil
	}
	host, port, err := splitAdvertised(m.config.Advertise)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("fleet.advertise: %w", err)
	}
	if port == 0 {
		port = int(own.Port())
	}
	ips, err := m.lookup(ctx, host)
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("fleet.advertise: %w", err)
	case len(ips) == 0:
		return netip.AddrPort{}, fmt.Errorf("fleet.advertise: %s has no address", host)
	case len(ips) > 1:
		return netip.AddrPort{}, fmt.Errorf("fleet.advertise: must be one router's own address, but %s has %d", host, len(ips))
	}
	return netip.AddrPortFrom(ips[0], uint16(port)), nil
}

// advertisedRPC is the address of the routers' services: the host that is listened on, or the gossip's, with the port that is listened on.
func (m *Members) advertisedRPC(gossip netip.Addr, listening net.Addr) (netip.AddrPort, error) {
	own, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("fleet.rpc_listen: %w", err)
	}
	ip := own.Addr().Unmap()
	if m.config.Advertise != "" || ip.IsUnspecified() {
		ip = gossip
	}
	return netip.AddrPortFrom(ip, own.Port()), nil
}

// errNoRoute is why there is no address to announce.
var errNoRoute = errors.New("this host has no address of its own")

// outgoing is the address from which this host reaches others. No packet is sent to find it.
func outgoing(ctx context.Context) (netip.Addr, error) {
	for _, somewhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // documentation's
		conn, err := new(net.Dialer).DialContext(ctx, "udp", somewhere)
		if err != nil {
			continue
		}
		conn.Close()
		if own, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
			return own.Addr().Unmap(), nil
		}
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, wantLoopback := range []bool{false, true} {
		for _, a := range local {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().IsLoopback() == wantLoopback && !prefix.Addr().IsLinkLocalUnicast() {
				return prefix.Addr().Unmap(), nil
			}
		}
	}
	return netip.Addr{}, errNoRoute
}
