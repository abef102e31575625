package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/admin"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
)

// surfaces are the servers of the listeners: one implementation of the services behind REST and gRPC.
type surfaces struct {
	http   *http.Server
	grpc   *grpc.Server
	admin  *http.Server
	health *healthService
	guard  *guard.Guard
	// protocols answers clients of another address.
	protocols *guard.Protocols
	ledger    *ledger.Ledger
	// wrongHost answers requests for other hosts.
	wrongHost http.Handler
	api       *grpcapi.API
	callers   *callers.Callers
	audit     *audit.Log
	gateway   *gateway.Gateway
	// leaving has client connections end with their next answer.
	leaving atomic.Bool
	// picker answers gateways; nil without epp.listen.
	picker *picker
	// console serves the RPCs that the console reads.
	console *gateway.Gateway
}

// readiness returns why the router should get no requests now.
type readiness func() error

// Ready implements Health of the surfaces.
func (r readiness) Ready() error { return r() }

// changeable is the settings that the RPCs change.
type changeable struct{ server *Server }

// Settings implements grpcapi.SettingsOwner.
func (c changeable) Settings() grpcapi.Settings { return c.server.changeable() }

func (s *Server) newSurfaces(t *telemetry.Telemetry, traces *history.Traces) (*surfaces, error) {
	c, _ := s.config.WithinMemory(s.params.Memory)
	s.params.Memory.Show(t.Meters())
	p := s.parts
	record := audit.New(c.Audit, audit.Params{Stderr: s.params.LogTo, Scope: p.part("audit")})
	who, err := callers.New(c.API.Callers(), callers.Params{
		Scope: p.part("callers"), Reads: reads{record}, NoFollow: s.params.Source != nil && c.Reload.Watch,
	})
	if err != nil {
		return nil, fmt.Errorf("api.%w", err)
	}
	api, err := grpcapi.New(c.API, grpcapi.Params{
		Router: p.router, Lifecycle: p.chooser, Chooser: p.chooser, Tokens: p.tokens, Settings: changeable{s},
		Ranks:   grpcapi.Ranks{Registry: p.ranks.Registry, Book: p.ranks.Book, Engines: p.ranks.Stats, Index: p.ranks.Index, Feeds: p.ranks.Events, Breakers: p.breaker},
		Version: s.params.Version, Links: grpcapi.Links(c.Admin.Links), Health: readiness(s.ready), Peers: p.forward(), Records: grpcapi.Records{Decisions: p.decisions, History: p.history, Traces: traces, Splits: p.splits},
		Forward: c.Router.UnknownRoutes,
		Callers: who, Audit: record, Registration: c.Registry.Registration.Enabled, Scope: p.part("grpcapi"),
	})
	if err != nil {
		return nil, err
	}
	if p.peers != nil {
		p.peers.Offer(api)
	}
	out := &surfaces{health: newHealthService(), api: api, callers: who, audit: record, ledger: s.ledger, protocols: guard.NewProtocols(t.Meters())}
	if err := out.openREST(c, t, p, api, s.ready); err != nil {
		return nil, err
	}
	if err := out.openGRPC(c, t, p, api); err != nil {
		return nil, err
	}
	if err := out.openPicker(c, t, p, s.params.Listeners.EPP != nil); err != nil {
		return nil, err
	}
	return out, out.openAdmin(c, t, p, api, s.ready)
}

// openAdmin makes the admin surface. The console polls: its calls are neither traced nor counted among the clients', and no
// other origin's page may make them.
func (s *surfaces) openAdmin(c config.Config, t *telemetry.Telemetry, p *parts, api *grpcapi.API, ready readiness) (err error) {
	own := c.Gateway
	own.AllowOrigins = nil
	s.console, err = gateway.New(own, gateway.Params{
		Services: api, Senders: api.Admin(), Health: ready, Ledger: s.ledger, Scope: scope.Logged(p.part("admin").Log()),
	})
	if err != nil {
		return err
	}
	s.admin = httpServer(c.Listen, s.protocols.RefuseGRPC("admin address (listen.admin)", guardAdmin(s.gateway.StallTimeout, admin.Handler(c.Admin, admin.Params{
		Health: ready, Metrics: guard.Charged(s.ledger, metricsMemory, t.MetricsHandler()), RPCs: s.console, Senders: api.Admin(),
	}))), p.part("admin").Log())
	return nil
}

// reads records that credentials were read again.
type reads struct{ to *audit.Log }

// Read implements callers.Reads.
func (r reads) Read(source callers.Source, err error) {
	e := audit.Event{Kind: audit.Settings, Outcome: audit.OK, Target: string(source)}
	if err != nil {
		e.Outcome, e.Detail = "failed", err.Error()
	}
	r.to.Write(e)
}

// openREST makes the REST surface.
func (s *surfaces) openREST(c config.Config, t *telemetry.Telemetry, p *parts, api *grpcapi.API, ready readiness) error {
	params := gateway.Params{
		Services: api, Senders: api, Health: ready, Ledger: s.ledger,
		Forward: c.Router.UnknownRoutes, Scope: p.part("gateway"), Propagator: t.Propagator(),
	}
	g, err := gateway.New(c.Gateway, params)
	if err != nil {
		return err
	}
	s.http = httpServer(c.Listen, s.protocols.RefuseGRPC("REST address (listen.http)", closing(&s.leaving, g)), p.part("http").Log())
	s.wrongHost, s.gateway = g.RefuseHost(), g
	return nil
}

// openGRPC makes the gRPC surface, with health and reflection.
func (s *surfaces) openGRPC(c config.Config, t *telemetry.Telemetry, p *parts, api *grpcapi.API) error {
	s.guard = newGuard(c, t, p, api, s.ledger)
	options := append(s.guard.Options(),
		grpc.ChainUnaryInterceptor(api.Unary), grpc.ChainStreamInterceptor(api.Stream),
		grpc.StatsHandler(guard.Roomy(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(t.Tracers()), otelgrpc.WithMeterProvider(t.Meters()), otelgrpc.WithPropagators(t.Propagator()),
		))),
	)
	secure, err := grpcCredentials(c.Listen)
	if err != nil {
		return err
	}
	s.grpc = grpc.NewServer(append(options, secure...)...)
	guarded := s.guard.Registrar(s.grpc)
	api.Register(guarded)
	healthpb.RegisterHealthServer(guarded, s.health)
	reflection.Register(guarded)
	return nil
}

// closing ends client connections with their next answer once leaving is set: HTTP/1 by "Connection: close", for which HTTP/2
// sends GOAWAY. Clients then have a connection to another router when the listener closes, and no request meets its end.
func closing(leaving *atomic.Bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// leave makes health checks fail and ends the streams that last.
func (s *surfaces) leave() {
	s.health.Shutdown()
	s.api.Leave()
}

// watchHealth keeps gRPC's health in step with readiness until ctx ends.
func (s *surfaces) watchHealth(ctx context.Context, changed <-chan struct{}, ready func() error) error {
	for {
		state := healthpb.HealthCheckResponse_SERVING
		if ready() != nil {
			state = healthpb.HealthCheckResponse_NOT_SERVING
		}
		s.health.SetServingStatus("", state)
		for service := range s.grpc.GetServiceInfo() {
			if strings.HasPrefix(service, "kvpilot.") {
				s.health.SetServingStatus(service, state)
			}
		}
		if s.picker != nil {
			s.picker.setHealth(s.health, state)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// httpServer bounds the resources of a slow or hostile client; answers have no time limit of their own.
func httpServer(l config.Listen, h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: guard.Counted(h), ConnContext: ledger.WithConn, Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: l.MaxStreams},
		ReadHeaderTimeout: l.ReadHeaderTimeout, IdleTimeout: l.IdleTimeout, MaxHeaderBytes: int(l.MaxHeaderBytes),
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
