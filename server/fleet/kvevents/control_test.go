package kvevents_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// controlService is vLLM's Control service with scripted answers.
type controlService struct {
	endpoint string

	mu       sync.Mutex
	sources  [][]byte // guarded by mu
	instance string   // guarded by mu
}

// source encodes a KvEventSource; rank -1 is not sent.
func source(transport, endpoint, replay string, rank int) []byte {
	var b []byte
	for num, value := range map[protowire.Number]string{1: transport, 2: endpoint, 3: "kv@c", 4: replay, 6: "msgpack"} {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), value)
	}
	if rank >= 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 5, protowire.VarintType), uint64(rank))
	}
	return protowire.AppendVarint(protowire.AppendTag(b, 7, protowire.VarintType), 1)
}

func startControl(t *testing.T) *controlService {
	t.Helper()
	s := &controlService{}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.endpoint = "grpc://" + ln.Addr().String()
	server := grpc.NewServer(grpc.UnknownServiceHandler(s.answer))
	var served sync.WaitGroup
	served.Go(func() { server.Serve(ln) })
	t.Cleanup(func() { server.Stop(); served.Wait() })
	return s
}

func (s *controlService) set(instance string, sources ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instance, s.sources = instance, sources
}

func (s *controlService) answer(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := &emptypb.Empty{}
	var b []byte
	if strings.HasSuffix(method, "GetServerInfo") {
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), "0.27.0")
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), s.instance)
	} else {
		for _, src := range s.sources {
			b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), src)
		}
	}
	reply.ProtoReflect().SetUnknown(b)
	return stream.SendMsg(reply)
}

// wildcard is how an engine names a socket that it has bound.
func wildcard(endpoint string) string { return strings.Replace(endpoint, "127.0.0.1", "*", 1) }

func TestControlServiceTellsTheSockets(t *testing.T) {
	a, b := startEngine(t, zmtp.PublisherParams{Topic: "kv@c"}), startEngine(t, zmtp.PublisherParams{Topic: "kv@c"})
	control := startControl(t)
	control.set("one", source("zmq", wildcard(a.live), wildcard(a.replays), 0), source("nats", "n", "", 1), source("zmq", wildcard(b.live), "", 1))
	p, sink := startPlane(t, quick())
	for rank := range 2 {
		p.Add(replica.Slot(rank), replica.Events{Endpoint: control.endpoint, Rank: rank}, "c")
	}
	for _, e := range []*engine{a, b} {
		eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
		e.publish(4, 1)
		e.publish(4, 1)
	}
	if s := expect(t, p, sink, 0, a, kvblock.FeedExact); s.Endpoint != a.live || s.Replay != a.replays {
		t.Errorf("status = %s", dump(s))
	}
	expect(t, p, sink, 1, b, kvblock.FeedExact)

	// Rank 1 has no replay: the name of the process alone tells whether a new connection leads to it.
	b.pub.Disconnect()
	s := expect(t, p, sink, 1, b, kvblock.FeedExact)
	eventually(t, "connected again", func() bool { s, _ = p.Status(1); return s.Connects == 2 && s.State == kvblock.FeedExact })
	if s.Resets != 0 {
		t.Errorf("status = %s", dump(s))
	}
	eventually(t, "subscribed again", func() bool { return b.pub.Subscriptions() == 1 })
	control.set("two", source("zmq", wildcard(a.live), wildcard(a.replays), 0), source("zmq", wildcard(b.live), "", 1))
	b.pub.Disconnect()
	eventually(t, "the reset", func() bool { s, _ = p.Status(1); return s.Restarts == 1 && len(sink.content(1)) == 0 })
}

func TestControlServiceThatCannotHelp(t *testing.T) {
	control := startControl(t)
	for _, tt := range []struct {
		name, want string
		sources    [][]byte
	}{
		{"no sources", "none for rank 0", nil},
		{"another rank's", "none for rank 0", [][]byte{source("zmq", "tcp://*:1", "", 1)}},
		{"another transport", "none for rank 0", [][]byte{source("nats", "tcp://*:1", "", 0)}},
		{"an engine that dials", "configure this endpoint with bind", [][]byte{source("zmq", "tcp://10.0.0.1:5557", "", 0)}},
		{"no address", "missing port", [][]byte{source("zmq", "tcp://*", "", 0)}},
		{"broken bytes", "cannot parse invalid wire-format data", [][]byte{{0x0a, 0x7f}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			control.set("x", tt.sources...)
			p, sink := startPlane(t, quick())
			p.Add(slot, replica.Events{Endpoint: control.endpoint}, "c")
			eventually(t, tt.want, func() bool { s, _ := p.Status(slot); return strings.Contains(s.LastError, tt.want) })
			eventually(t, "cold", func() bool { return sink.state(slot) == kvblock.FeedCold })
		})
	}
	p, _ := startPlane(t, quick())
	p.Add(slot, replica.Events{Endpoint: "grpc://nowhere"}, "c")
	eventually(t, "an error", func() bool { s, _ := p.Status(slot); return strings.Contains(s.LastError, "grpc://host:port") })
}
