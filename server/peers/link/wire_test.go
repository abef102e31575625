package link_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/link"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

// methodsOfWire1 are those that routers of wire version 1 call and serve.
var methodsOfWire1 = []string{"Decide", "PullIndex", "ShareFacts", "ShareLimits"}

func path1(method string) string { return "/kvpilot.v1.PeerService/" + method }

// both are the credentials of a router of wire version 1: its identity is as it is now.
func both(t *testing.T, id, callee string) (server, client credentials.TransportCredentials) {
	t.Helper()
	who, err := identity.New([]byte(fleetKey), id)
	if err != nil {
		t.Fatal(err)
	}
	quiet := refusals.New(scope.Scope{})
	return who.Server(quiet), who.Client(callee, quiet)
}

// Each call of a router of wire version 1 is refused by name, whatever it sends, and neither half takes it for a peer.
func TestCallsOfWireVersion1AreUnimplemented(t *testing.T) {
	a := run(t, "0000000a", func(p *link.Params) { p.Facts, p.Index = services{}, services{} })
	_, creds := both(t, "0000000b", a.id)
	conn, err := grpc.NewClient("passthrough:///"+a.at, grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range methodsOfWire1 {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, path1(method))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&pb.DecideRequest{Events: []*pb.FrontendEvent{{}}}); err != nil {
			t.Logf("%s: the message is not taken: %v", method, err)
		}
		err = stream.RecvMsg(&emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "wire version 2") || !strings.Contains(err.Error(), path1(method)) {
			t.Errorf("%s: %v", method, err)
		}
	}
	if text := a.log.String(); !strings.Contains(text, "reason=wire") || !strings.Contains(text, "from=0000000b") {
		t.Errorf("log:\n%s", text)
	}
	if heard := a.all(); len(heard) != 0 {
		t.Errorf("heard %q", heard)
	}
}

// A router that serves the services of wire version 1 only is away: no half is up, and nothing is sent to it but questions for a link.
func TestARouterThatServesWireVersion1IsAway(t *testing.T) {
	creds, _ := both(t, "0000000b", "")
	calls := make(chan string, 64)
	old := grpc.NewServer(grpc.Creds(creds))
	served := func(any, grpc.ServerStream) error { return nil }
	desc := grpc.ServiceDesc{ServiceName: "kvpilot.v1.PeerService", HandlerType: (*any)(nil)}
	for _, method := range methodsOfWire1 {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: method, ClientStreams: true, ServerStreams: true, Handler: func(srv any, s grpc.ServerStream) error {
			calls <- method
			return served(srv, s)
		}})
	}
	old.RegisterService(&desc, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- old.Serve(l) }()
	t.Cleanup(func() {
		old.Stop()
		<-stopped
	})
	a := run(t, "0000000a")
	liar := member("0000000b", l.Addr().String()) // it announces this wire version
	a.SetMembers([]members.Member{liar})
	eventually(t, 10*time.Second, "it is logged", func() bool {
		text := a.log.String()
		return strings.Contains(text, "reason=wire") && strings.Contains(text, "from=0000000b") && strings.Contains(text, "kvpilot.peer.v1.DecideService")
	})
	if _, ok := a.Conn(liar.ID); ok || len(a.Peers()) != 0 || len(a.all()) != 0 {
		t.Errorf("peers %q, heard %q", a.Peers(), a.all())
	}
	a.SendEvent(liar.ID, ask(1)) // goes nowhere
	select {
	case method := <-calls:
		t.Errorf("%s was called", method)
	default:
	}
}
