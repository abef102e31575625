package server

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthService is gRPC's health service. Its watches end when the router leaves, each after it has reported that.
type healthService struct {
	*health.Server
	life context.Context //nolint:containedctx // the service's own, of no request
	end  context.CancelFunc
}

func newHealthService() *healthService {
	h := &healthService{Server: health.NewServer()}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// Shutdown makes every check fail from now on.
func (h *healthService) Shutdown() {
	h.Server.Shutdown()
	h.end()
}

// serviceLiveness is the name under which gateways' probes ask whether the process works.
const serviceLiveness = "liveness"

// Check implements healthpb.HealthServer. A router that drains is live: its orchestrator must not kill it.
func (h *healthService) Check(ctx context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	answer, err := h.Server.Check(ctx, in)
	if err == nil && in.GetService() == serviceLiveness {
		answer.Status = healthpb.HealthCheckResponse_SERVING
	}
	return answer, err
}

// Watch implements healthpb.HealthServer.
func (h *healthService) Watch(in *healthpb.HealthCheckRequest, out healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	w := &healthWatch{Health_WatchServer: out, ctx: ctx, cancel: cancel}
	defer context.AfterFunc(h.life, w.leave)()
	err := h.Server.Watch(in, w)
	if h.life.Err() != nil && out.Context().Err() == nil {
		return status.Error(codes.Unavailable, "the router is stopping")
	}
	return err
}

// healthWatch is one caller's watch.
type healthWatch struct {
	healthpb.Health_WatchServer
	ctx    context.Context //nolint:containedctx // a stream has one
	cancel context.CancelFunc

	mu      sync.Mutex
	serving bool // guarded by mu: the caller has this state
	leaving bool // guarded by mu
}

// Context implements grpc.ServerStream.
func (w *healthWatch) Context() context.Context { return w.ctx }

// Send implements healthpb.Health_WatchServer.
func (w *healthWatch) Send(m *healthpb.HealthCheckResponse) error {
	err := w.Health_WatchServer.Send(m)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving = m.GetStatus() == healthpb.HealthCheckResponse_SERVING
	w.endIfSaid()
	return err
}

// leave ends the watch, once its caller has been sent that the router does not serve.
func (w *healthWatch) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving = true
	w.endIfSaid()
}

func (w *healthWatch) endIfSaid() {
	if w.leaving && !w.serving {
		w.cancel()
	}
}
