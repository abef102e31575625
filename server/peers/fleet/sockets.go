package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/kvpilot/kvpilot/server/peers/members"
)

// Open opens the gossip's addresses and the routers', unless given has them already, and returns the listener of the latter, which
// Serve is to get back. It closes what it opened when it fails.
func (f *Fleet) Open(ctx context.Context, c members.Config, given members.Sockets, rpc net.Listener) (_ net.Listener, err error) {
	f.sockets, f.rpc = given, rpc
	listen := new(net.ListenConfig)
	if f.sockets.TCP == nil {
		if f.sockets.TCP, err = listen.Listen(ctx, "tcp", c.Listen); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.listen: %w", err), f.close())
		}
	}
	if f.sockets.UDP == nil {
		if f.sockets.UDP, err = listen.ListenPacket(ctx, "udp", samePort(c.Listen, f.sockets.TCP.Addr())); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.listen: %w", err), f.close())
		}
	}
	if f.rpc == nil {
		if f.rpc, err = listen.Listen(ctx, "tcp", c.RPCAddress()); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.rpc_listen: %w", err), f.close())
		}
	}
	f.sockets.RPC = f.rpc.Addr()
	return f.rpc, nil
}

// Serve has Run serve the other routers on l, which is Open's or wraps it.
func (f *Fleet) Serve(l net.Listener) { f.rpc = l }

// Gossip is the address of the gossip.
func (f *Fleet) Gossip() net.Addr { return f.sockets.TCP.Addr() }

// samePort is address with the port of another one, because port 0 takes any.
func samePort(address string, as net.Addr) string {
	host, _, err := net.SplitHostPort(address)
	tcp, ok := as.(*net.TCPAddr)
	if err != nil || !ok {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}

// close closes what Open has opened, when the router does not start.
func (f *Fleet) close() error {
	var errs []error
	if f.sockets.TCP != nil {
		errs = append(errs, f.sockets.TCP.Close())
	}
	if f.sockets.UDP != nil {
		errs = append(errs, f.sockets.UDP.Close())
	}
	if f.rpc != nil {
		errs = append(errs, f.rpc.Close())
	}
	return errors.Join(errs...)
}
