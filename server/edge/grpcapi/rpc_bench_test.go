package grpcapi_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvpilot/kvpilot/client"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// decided is a router that has made its choice.
type decided struct {
	fakeRouter
	answer *router.Answer
}

// Choose implements grpcapi.Router.
func (d *decided) Choose(context.Context, *intake.Question) (*router.Answer, error) {
	return d.answer, nil
}

// serveGuarded serves the API behind a guard, as the gRPC listener does, and returns a client of it.
func serveGuarded(b testing.TB, api *grpcapi.API, on net.Listener, dial func(context.Context, string) (net.Conn, error)) *client.Client {
	b.Helper()
	g := guard.New(guard.Limits{Message: 4 << 20, Streams: 1000, HeaderBytes: 1 << 20, Handshake: time.Minute, Idle: time.Minute}, guard.Params{
		Ledger: ledger.New(ledger.Config{Bytes: 1 << 30, Places: 1 << 30}, nil), Senders: api, Messages: grpcapi.Messages{},
	})
	server := grpc.NewServer(append(g.Options(), grpc.UnaryInterceptor(api.Unary), grpc.StreamInterceptor(api.Stream))...)
	api.Register(g.Registrar(server))
	served := make(chan error, 1)
	go func() { served <- server.Serve(on) }()
	c, err := client.Dial("passthrough:"+on.Addr().String(), client.WithGRPC(grpc.WithContextDialer(dial)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Close()
		server.Stop()
		<-served
	})
	return c
}

// BenchmarkChooseReplica is the call of a decision of 8,192 token ids, client and server together, without the choice: over a connection in
// memory and over the loopback.
func BenchmarkChooseReplica(b *testing.B) {
	ids := make([]uint32, 8192)
	for i := range ids {
		ids[i] = uint32(i * 17)
	}
	made := &decided{answer: &router.Answer{Choice: &chooser.Choice{Decision: &decision.Decision{Request: decision.Request{ID: "d"}, Ranks: decision.Ranks{Chosen: -1}}, Replica: &replica.Replica{ID: "r"}}}}
	api := newRig(b, grpcapi.DefaultConfig(), func(p *grpcapi.Params) { p.Router = made }).api
	memory := bufconn.Listen(1 << 20)
	socket, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]*client.Client{
		"memory": serveGuarded(b, api, memory, func(ctx context.Context, _ string) (net.Conn, error) { return memory.DialContext(ctx) }),
		"loopback": serveGuarded(b, api, socket, func(ctx context.Context, at string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", at)
		}),
	} {
		b.Run(name, func(b *testing.B) {
			routing := c.Routing()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := routing.ChooseReplica(b.Context(), withIDs(ids...)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
