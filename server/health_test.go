package server

import (
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Kubernetes kills a pod whose liveness probe fails, with the streams that it drains.
func TestARouterThatDrainsIsLive(t *testing.T) {
	h := newHealthService()
	(&picker{}).setHealth(h, healthpb.HealthCheckResponse_SERVING)
	h.Shutdown()
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"liveness": healthpb.HealthCheckResponse_SERVING, "readiness": healthpb.HealthCheckResponse_NOT_SERVING,
		"envoy.service.ext_proc.v3.ExternalProcessor": healthpb.HealthCheckResponse_NOT_SERVING, "": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		answer, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || answer.GetStatus() != want {
			t.Errorf("%q is %v, %v; want %s", service, answer.GetStatus(), err, want)
		}
	}
	if _, err := newHealthService().Check(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"}); err == nil {
		t.Error("a router without an endpoint picker knows its liveness")
	}
}
