package conformance

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/gen/openapi"
	"github.com/kvpilot/kvpilot/test/stack"
)

// The wire between routers is on no public surface: no service of it is called, listed, watched or described there.
func TestTheWireBetweenRoutersIsNotPublic(t *testing.T) {
	s := stack.Start(t, stack.Options{})
	conn := dial(t, s.GRPC)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	services := []grpc.ServiceDesc{peerv1.DecideService_ServiceDesc, peerv1.IndexService_ServiceDesc, peerv1.FactsService_ServiceDesc, peerv1.LimitsService_ServiceDesc}
	for _, desc := range services {
		var methods []string
		for _, m := range desc.Methods {
			methods = append(methods, m.MethodName)
		}
		for _, m := range desc.Streams {
			methods = append(methods, m.StreamName)
		}
		for _, method := range methods {
			path := "/" + desc.ServiceName + "/" + method
			err := conn.Invoke(ctx, path, &peerv1.PullIndexRequest{}, &peerv1.PullIndexResponse{})
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s over gRPC: %v", path, err)
			}
			answer, err := http.Post("http://"+s.HTTP+path, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusNotFound {
				t.Errorf("%s over REST: %s", path, answer.Status)
			}
		}
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: desc.ServiceName})
		if status.Code(err) != codes.NotFound {
			t.Errorf("the health of %s: %v", desc.ServiceName, err)
		}
	}
	reflect, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := reflect.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := reflect.Recv()
	if err != nil {
		t.Fatal(err)
	}
	public := 0
	for _, service := range list.GetListServicesResponse().GetService() {
		if strings.HasPrefix(service.GetName(), "kvpilot.peer.") {
			t.Errorf("reflection lists %s", service.GetName())
		}
		if strings.HasPrefix(service.GetName(), "kvpilot.v1.") {
			public++
		}
	}
	if public == 0 {
		t.Errorf("reflection lists %v", list)
	}
	if bytes.Contains(openapi.Document, []byte("kvpilot.peer")) {
		t.Error("the OpenAPI document has kvpilot.peer")
	}
}
