package guard

import (
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// connect returns a counted connection and its client's end.
func connect(t *testing.T, l *ledger.Ledger) (*ledger.Conn, net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := l.Listener(inner, ledger.ListenerConfig{Max: 10, Cost: 1})
	defer counted.Close()
	client, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := counted.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return ledger.Unwrap(server), client
}

// receive has n bytes come over a connection.
func receive(t *testing.T, server *ledger.Conn, client net.Conn, n int) {
	t.Helper()
	go client.Write(make([]byte, n))
	for got := 0; got < n; {
		m, err := server.Read(make([]byte, n))
		if err != nil {
			t.Fatal(err)
		}
		got += m
	}
}

func newGuard(l *ledger.Ledger) *Guard {
	d := New(Limits{}, Params{
		Ledger: l, Senders: senders(func(method string, md metadata.MD) (*caller.Caller, bool) {
			return &caller.Caller{Tenant: strings.Join(md.Get("tenant"), "")}, strings.HasPrefix(method, "/kvpilot")
		}),
	})
	d.registered["/health/Watch"] = true
	return d
}

// call begins a call over a connection.
func (d *Guard) call(t *testing.T, over *ledger.Conn, method, tenant string) (*Call, error) {
	t.Helper()
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: over.RemoteAddr()})
	ctx, err := d.tap(ctx, &tap.Info{FullMethodName: method, Header: metadata.Pairs("tenant", tenant)})
	if err != nil {
		return nil, err
	}
	return FromContext(ctx), nil
}

func TestThePartyWithTheMostOnItsWayEnds(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 1 << 20, Places: 16 << 20}, nil)
	d := newGuard(l)
	var attack []*Call
	for range 4 {
		server, client := connect(t, l)
		c, err := d.call(t, server, "/kvpilot/a", "attacker")
		if err != nil {
			t.Fatal(err)
		}
		attack = append(attack, c)
		receive(t, server, client, 10_000)
	}
	server, client := connect(t, l)
	honest, err := d.call(t, server, "/kvpilot/a", "honest") // the newest, and its message is larger than each of the others
	if err != nil {
		t.Fatal(err)
	}
	receive(t, server, client, 30_000)
	for l.Arrived(64 << 10) {
	}
	d.shed()
	ended := 0
	for _, c := range attack {
		if c.Err() != nil {
			ended++
		}
	}
	if ended != 1 || honest.Err() != nil {
		t.Errorf("%d calls of the tenant with the most on its way ended, the honest one %v", ended, honest.Err())
	}
}

func TestCallsWithoutCredentialsAreFew(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 1 << 20, Places: 8 * 20 * callCost}, nil) // 20 calls are an eighth
	d := newGuard(l)
	var calls []*Call
	for range 3 {
		server, _ := connect(t, l)
		for i := range mostNameless + 2 {
			c, err := d.call(t, server, "/health/Watch", "")
			if want := i >= mostNameless; (err != nil) != want || want && status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("call %d of a connection: %v", i+1, err)
			}
			if c != nil {
				calls = append(calls, c)
			}
		}
		if _, err := d.call(t, server, "/kvpilot/a", "honest"); err != nil {
			t.Errorf("a call with credentials next to them: %v", err)
		}
	}
	for i, c := range calls {
		if ended := c.Err() != nil; ended != (i < len(calls)-20) {
			t.Errorf("call %d of %d without credentials: ended %t, want the oldest ones to end beyond 20", i+1, len(calls), ended)
		}
	}
	for _, c := range calls {
		c.end()
	}
	if _, err := d.call(t, calls[0].conn, "/health/Watch", ""); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestLargeAnswersAreChargedUntilTheyAreSent(t *testing.T) {
	l := ledger.New(ledger.Config{Bytes: 1 << 20, Places: 16 << 20}, nil)
	d := newGuard(l)
	server, _ := connect(t, l)
	answer := &httpbody.HttpBody{Data: make([]byte, 200<<10)}
	send := func() (func(), error) {
		c, err := d.call(t, server, "/kvpilot/a", "a")
		if err != nil {
			t.Fatal(err)
		}
		defer c.end()
		out, err := c.answered(answer)
		if err != nil {
			return nil, err
		}
		wire, err := newCodec(d.Messages).Marshal(out)
		if err != nil || wire.Len() < len(answer.Data) {
			t.Fatalf("%v, %d bytes", err, wire.Len())
		}
		return wire.Free, nil
	}
	free1, err1 := send()
	free2, err2 := send()
	if err1 != nil || err2 != nil || l.Held(ledger.Answer) < 400<<10 {
		t.Fatalf("%v, %v, %d bytes are charged of two answers that wait", err1, err2, l.Held(ledger.Answer))
	}
	if _, err := send(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an answer beyond the tenant's share: %v", err)
	}
	free1()
	free2()
	if l.Held(ledger.Answer) != 0 || len(d.answers) != 0 {
		t.Errorf("%d bytes are charged, %d answers listed when all are sent", l.Held(ledger.Answer), len(d.answers))
	}
	if _, err := send(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	server.Close()
	d.round(d.tick.Add(1))
	if l.Held(ledger.Answer) != 0 {
		t.Errorf("%d bytes are charged of an answer whose connection is gone", l.Held(ledger.Answer))
	}
}
