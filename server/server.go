package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/kit/reload"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/wire/socket"
)

// Listeners are the sockets to serve on; a nil one is opened from the configuration.
type Listeners struct {
	HTTP, GRPC, Admin net.Listener
	// EPP and EPPHealth are the listeners of epp.listen and epp.health.
	EPP, EPPHealth net.Listener
	// Gossip, GossipPackets and Peers are the sockets of fleet.listen and fleet.rpc_listen.
	Gossip        net.Listener
	GossipPackets net.PacketConn
	Peers         net.Listener
}

// Params has the arguments of the process in addition to the Config.
type Params struct {
	// LogTo receives the log.
	LogTo io.Writer
	// Version is shown to operators and put on spans.
	Version string
	// Memory is the memory that the process may take: the limits of parts are lowered to fit. The zero value lowers none.
	Memory memlimit.Limit
	// Env is the environment in os.Environ's form; OpenTelemetry's OTEL_* are looked for in it.
	Env []string
	// Listeners replace the configured addresses, for tests and demos.
	Listeners Listeners
	// Source is where the settings came from, to read them again; nil: they stay as they are.
	Source *config.Source
	// Text is the settings file's as it was read, if there is one.
	Text []byte
	// Hangup asks for a reload.
	Hangup <-chan os.Signal
	// Manager follows the process's states; nil: none does.
	Manager Manager
}

// Manager manages the process, as systemd does.
type Manager interface {
	// Serving is called with the addresses once every listener is open.
	Serving(at Addresses)
	// Reloading is called before the reload that Params.Hangup requests, Reloaded after it, with its error.
	Reloading()
	Reloaded(err error)
}

// Serving is a Manager that waits for the addresses. It needs room for one.
type Serving chan Addresses

// Serving implements Manager.
func (s Serving) Serving(at Addresses) { s <- at }

// Reloading implements Manager.
func (Serving) Reloading() {}

// Reloaded implements Manager.
func (Serving) Reloaded(error) {}

// Addresses are the addresses of the listeners; empty for one that is not open.
type Addresses struct {
	HTTP, GRPC, Admin string
	// EPP and EPPHealth are for gateways.
	EPP, EPPHealth string
	// Gossip and Peers are for the other routers of the fleet.
	Gossip, Peers string
}

// Server is a whole router. Make one with New and run it once.
type Server struct {
	config    config.Config
	params    Params
	telemetry *telemetry.Telemetry
	parts     *parts
	surfaces  *surfaces
	ledger    *ledger.Ledger
	settings  *reload.Manager[config.Config]
	leaving   atomic.Bool
	// unanswered keeps the listeners from logging one by one that replicas have not answered.
	unanswered sync.Once
}

// errLeaving is why a router that is shutting down is not ready.
var errLeaving = errors.New("the router is shutting down")

// New builds a router. It opens no socket and starts nothing. c must be valid.
func New(ctx context.Context, c config.Config, p Params) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // a name for spans; nothing depends on it
	}
	traces := &history.Traces{}
	tp := telemetry.Params{LogTo: p.LogTo, Version: p.Version, Instance: fmt.Sprintf("%s/%d", host, os.Getpid()), Env: p.Env}
	if c.Admin.Console {
		tp.Display = traces
	}
	t, err := telemetry.New(ctx, c.Telemetry, tp)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, params: p, telemetry: t}
	c, lowered := c.WithinMemory(p.Memory)
	if s.parts, err = newParts(c, t, p.environment(), nil); err != nil {
		return nil, err
	}
	if len(lowered) > 0 {
		s.parts.scope.Log().Info("settings are lowered to fit the memory", "limit", p.Memory, "lowered", strings.Join(lowered, ", "))
	}
	s.parts.scope.Log().Info("settings in force; all others have their defaults (--print-config lists them)", "hash", config.Hash(c), "settings", config.InForce(c))
	s.ledger = s.newLedger(c, t)
	if s.surfaces, err = s.newSurfaces(t, traces); err != nil {
		return nil, err
	}
	s.settings = s.newSettings(s.config)
	return s, nil
}

// ready says why the router should get no requests now.
func (s *Server) ready() error {
	if s.leaving.Load() {
		return errLeaving
	}
	if s.parts.standby.HoldsAny() { // it takes requests before there is a replica, and has one started
		return nil
	}
	return s.parts.ranks.Ready()
}

// Run serves until ctx ends, drains, and returns nil; or it returns the first error of any part.
func (s *Server) Run(ctx context.Context) error {
	endpoints, addresses, err := s.open(ctx)
	if err != nil {
		return err
	}
	s.parts.ranks.Index.Restore()
	// Background work outlives ctx: streams that are being drained still need it.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	background := append(s.parts.background(), component{"health", task(func(ctx context.Context) error {
		return s.surfaces.watchHealth(ctx, s.parts.ranks.Changes(), s.ready)
	})})
	background = append(background, component{"guard", s.surfaces.guard}, component{"callers", s.surfaces.callers}, component{"audit", s.surfaces.audit})
	if s.surfaces.picker != nil {
		background = append(background, component{"epp guard", s.surfaces.picker.guard}, component{"epp objectives", s.surfaces.picker.objectives}, component{"epp rewrites", s.surfaces.picker.rewrites})
	}
	if s.params.Source != nil {
		background = append(background, component{"settings", task(s.followSettings)})
	}
	running := newGroup(len(background) + len(endpoints))
	running.start(working, background...)
	serving, shut := context.WithCancel(working)
	defer shut()
	for _, d := range endpoints {
		running.start(serving, component{d.name(), task(func(ctx context.Context) error {
			if name := d.name(); name != "admin" && name != "epp health" {
				s.awaitFleet(ctx)
			}
			return d.serve() // when ctx has ended, it closes the listener
		})})
	}
	if !hasSource(s.config) {
		s.parts.scope.Log().Warn("no replicas are configured: set --replica, registry.replicas or another source of docs/replicas.md", "registration", s.config.Registry.Registration.Enabled)
	}
	for _, doubt := range s.config.Registry.Doubts() {
		s.parts.scope.Log().Warn("a setting is probably wrong: registry." + doubt)
	}
	s.parts.scope.Log().Info("serving", "http", addresses.HTTP, "grpc", addresses.GRPC, "admin", addresses.Admin, "epp", addresses.EPP, "memory", s.params.Memory, "version", s.params.Version)
	if s.params.Manager != nil {
		s.params.Manager.Serving(addresses)
	}

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-running.failed:
		s.parts.scope.Log().Error("a part failed, shutting down", "error", failure)
	}
	shut() // from here on, an endpoint that ends does so on purpose
	return errors.Join(failure, s.leave(endpoints, stop, running))
}

// leave is the order of shutdown: not ready, stop accepting, drain, stop background work, flush.
func (s *Server) leave(endpoints []endpoint, stop context.CancelFunc, running *group) error {
	began := time.Now()
	s.surfaces.leaving.Store(true)
	s.leaving.Store(true)
	s.settings.Close()
	listen := s.settings.Config().Listen
	s.surfaces.leave()
	s.parts.standby.Close()
	if s.parts.peers != nil {
		s.parts.peers.Leave()
	}
	pause(listen.DrainDelay, running.failed)
	s.parts.router.Leave()
	drain, cancel := context.WithTimeout(context.Background(), listen.DrainTimeout)
	defer cancel()
	if err := stopAll(drain, endpoints); err != nil {
		s.parts.scope.Log().Warn("the drain deadline passed with work unfinished", "error", err)
	}
	if s.surfaces.picker != nil {
		s.surfaces.picker.server.Close()
	}
	stop()
	running.wait()
	flush, cancelFlush := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancelFlush()
	if err := s.telemetry.Close(flush); err != nil {
		s.parts.scope.Log().Warn("telemetry was not flushed", "error", err)
	}
	s.parts.scope.Log().Info("stopped", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// open opens the listeners that the configuration names.
func (s *Server) open(ctx context.Context) ([]endpoint, Addresses, error) {
	l := s.params.Listeners
	var at Addresses
	var endpoints []endpoint
	secure, err := serverTLS(s.config.Listen)
	if err != nil {
		return nil, at, err
	}
	adminSecure, err := adminTLS(s.config.Listen)
	if err != nil {
		return nil, at, err
	}
	for _, d := range []struct {
		setting string
		given   net.Listener
		address string
		secure  *tls.Config
		at      *string
	}{
		{"listen.http", l.HTTP, s.config.Listen.HTTP, secure, &at.HTTP},
		{"listen.grpc", l.GRPC, s.config.Listen.GRPC, nil, &at.GRPC},
		{"listen.admin", l.Admin, s.config.Listen.Admin, adminSecure, &at.Admin},
		{"epp.listen", l.EPP, s.config.EPP.Listen, nil, &at.EPP},
		{"epp.health", l.EPPHealth, s.config.EPP.Health, nil, &at.EPPHealth},
	} {
		listener := d.given
		if listener == nil {
			if d.address == "" {
				continue
			}
			if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", d.address); err != nil {
				for _, open := range endpoints {
					err = errors.Join(err, open.stop(ctx))
				}
				return nil, at, fmt.Errorf("%s: %w", d.setting, err)
			}
		}
		*d.at = listener.Addr().String()
		s.guardListener(d.setting, listener.Addr())
		listener = s.counted(d.setting, quick(s.config.Listen, listener))
		if d.secure != nil {
			listener = tls.NewListener(listener, d.secure)
		}
		switch d.setting {
		case "listen.http":
			endpoints = append(endpoints, newHTTPEndpoint("http", listener, s.surfaces.http, s.surfaces.gateway))
		case "listen.grpc":
			greeting := guard.Greeting{Secure: secure != nil, REST: at.HTTP}
			endpoints = append(endpoints, &grpcEndpoint{"grpc", s.surfaces.protocols.Greet(listener, greeting), s.surfaces.grpc})
		case "listen.admin":
			endpoints = append(endpoints, newHTTPEndpoint("admin", listener, s.surfaces.admin, nil))
		case "epp.listen":
			endpoints = append(endpoints, &grpcEndpoint{"epp", listener, s.surfaces.picker.grpc})
		case "epp.health":
			endpoints = append(endpoints, &grpcEndpoint{"epp health", listener, s.surfaces.picker.health})
		}
	}
	if err := s.openFleet(ctx, l, &at); err != nil {
		for _, open := range endpoints {
			err = errors.Join(err, open.stop(ctx))
		}
		return nil, at, err
	}
	return endpoints, at, nil
}

// openFleet opens the addresses for other routers, and has the connections to this one's counted. A router alone opens nothing.
func (s *Server) openFleet(ctx context.Context, given Listeners, at *Addresses) error {
	peers := s.parts.peers
	if peers == nil {
		return nil
	}
	rpc, err := peers.Open(ctx, s.config.Fleet, members.Sockets{TCP: given.Gossip, UDP: given.GossipPackets}, given.Peers)
	if err != nil {
		return err
	}
	rpc = s.countedPeers(rpc)
	peers.Serve(rpc)
	at.Gossip, at.Peers = peers.Gossip().String(), rpc.Addr().String()
	return nil
}

// quick gives a listener's connections writes that keep the processor, unless the operator turned that off.
func quick(c config.Listen, l net.Listener) net.Listener {
	if !c.RawSockets {
		return l
	}
	return socket.Listener(l)
}
