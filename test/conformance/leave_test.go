package conformance

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"google.golang.org/genproto/googleapis/api/httpbody"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/test/stack"
)

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A router that leaves ends the streams that have no end: a watch of its health, reports that are idle, reflection.
func TestIdleStreamsDoNotDelayTheEnd(t *testing.T) {
	s := stack.Start(t, stack.Options{Configure: func(c *config.Config) { c.Listen.DrainTimeout = time.Minute }})
	conn := dial(t, s.GRPC)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	health := healthpb.NewHealthClient(conn)
	watch, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "kvpilot.v1.ConfigService"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("the health is %v, %v", got, err)
	}
	unknown, err := health.Watch(ctx, &healthpb.HealthCheckRequest{Service: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unknown.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Fatalf("the health is %v, %v", got, err)
	}
	track, err := kvpilotv1.NewRoutingServiceClient(conn).TrackReservation(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := track.Header(); err != nil {
		t.Fatal(err)
	}
	reflect, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := reflect.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := reflect.Recv(); err != nil {
		t.Fatal(err)
	}
	body, send := io.Pipe()
	defer send.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/kvpilot/v1/reservations:track", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	lines, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Body.Close()

	began := time.Now()
	s.Stop()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the router took %v to end", took)
	}
	if got, err := watch.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the watch got %v, %v before its end", got, err)
	}
	for name, recv := range map[string]func() error{
		"health": func() error { _, err := watch.Recv(); return err }, "unknown health": func() error { _, err := unknown.Recv(); return err },
		"track": func() error { _, err := track.Recv(); return err }, "reflection": func() error { _, err := reflect.Recv(); return err },
	} {
		if err := recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s ended with %v", name, err)
		}
	}
	last := ""
	for in := bufio.NewScanner(lines.Body); in.Scan(); {
		last = in.Text()
	}
	if !strings.Contains(last, `"code":"shutting_down"`) {
		t.Errorf("the last line over REST is %q", last)
	}
}

// Compressed messages are refused by a reason of the contract, whatever kind of call they are for.
func TestCompressedMessagesAreRefused(t *testing.T) {
	s := stack.Start(t, stack.Options{})
	conn := dial(t, s.GRPC)
	zip := grpc.UseCompressor(gzip.Name)
	long := slices.Repeat([]byte(" "), 4096)
	for name, call := range map[string]func(context.Context) error{
		"unary": func(ctx context.Context) error {
			_, err := kvpilotv1.NewRoutingServiceClient(conn).ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Model: "sim", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: string(long)}}, zip)
			return err
		},
		"stream": func(ctx context.Context) error {
			out, err := kvpilotv1.NewInferenceServiceClient(conn).Completions(ctx, &httpbody.HttpBody{Data: long}, zip)
			if err == nil {
				_, err = out.Recv()
			}
			return err
		},
		"live": func(ctx context.Context) error {
			out, err := kvpilotv1.NewRoutingServiceClient(conn).TrackReservation(ctx, zip)
			if err == nil {
				err = out.Send(reports.Renew(string(long[:100])))
			}
			if err == nil || errors.Is(err, io.EOF) {
				_, err = out.Recv()
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := call(ctx); status.Code(err) != codes.Unimplemented || apierror.From(err).Reason != apierror.NotSupported || !strings.Contains(err.Error(), "compressed") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, zip); err != nil {
		t.Errorf("health: %v", err)
	}
}
