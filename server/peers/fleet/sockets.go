package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/kvpilot/kvpilot/server/peers/members"
)

// sockets are the fleet's own: of the gossip, and of the streams and calls between routers. They are open once Open has opened them.
type sockets struct {
	gossip members.Sockets
	rpc    net.Listener
}

// Open opens the gossip's addresses and the routers', unless given has them already, and returns the listener of the latter, which
// Serve is to get back. It closes the opened ones when it fails.
func (s *sockets) Open(ctx context.Context, c members.Config, given members.Sockets, rpc net.Listener) (_ net.Listener, err error) {
	s.gossip, s.rpc = given, rpc
	listen := new(net.ListenConfig)
	if s.gossip.TCP == nil {
		if s.gossip.TCP, err = listen.Listen(ctx, "tcp", c.Listen); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.listen: %w", err), s.close())
		}
	}
	if s.gossip.UDP == nil {
		if s.gossip.UDP, err = listen.ListenPacket(ctx, "udp", samePort(c.Listen, s.gossip.TCP.Addr())); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.listen: %w", err), s.close())
		}
	}
	if s.rpc == nil {
		if s.rpc, err = listen.Listen(ctx, "tcp", c.RPCAddress()); err != nil {
			return nil, errors.Join(fmt.Errorf("fleet.rpc_listen: %w", err), s.close())
		}
	}
	s.gossip.RPC = s.rpc.Addr()
	return s.rpc, nil
}

// Serve has Run serve the other routers on l, which is Open's or wraps it.
func (s *sockets) Serve(l net.Listener) { s.rpc = l }

// Gossip is the address of the gossip.
func (s *sockets) Gossip() net.Addr { return s.gossip.TCP.Addr() }

// samePort is address with the port of another one, because port 0 takes any.
func samePort(address string, as net.Addr) string {
	host, _, err := net.SplitHostPort(address)
	tcp, ok := as.(*net.TCPAddr)
	if err != nil || !ok {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}

// close closes the listeners of Open, when the router does not start.
func (s *sockets) close() error {
	var errs []error
	if s.gossip.TCP != nil {
		errs = append(errs, s.gossip.TCP.Close())
	}
	if s.gossip.UDP != nil {
		errs = append(errs, s.gossip.UDP.Close())
	}
	if s.rpc != nil {
		errs = append(errs, s.rpc.Close())
	}
	return errors.Join(errs...)
}
