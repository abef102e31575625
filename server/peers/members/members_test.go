package members_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fleetKey = "a key of sixteen bytes or more"

// gate is the sockets of a router, through which nothing comes in while it is shut.
type gate struct{ shut, receives atomic.Bool }

type gatedListener struct {
	net.Listener
	*gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	l.receives.Store(true)
	for {
		conn, err := l.Listener.Accept()
		if err != nil || !l.shut.Load() {
			return conn, err
		}
		conn.Close()
	}
}

type gatedPackets struct {
	net.PacketConn
	*gate
}

func (p gatedPackets) ReadFrom(b []byte) (int, net.Addr, error) {
	p.receives.Store(true)
	for {
		n, from, err := p.PacketConn.ReadFrom(b)
		if err != nil || !p.shut.Load() {
			return n, from, err
		}
	}
}

func (p gatedPackets) WriteTo(b []byte, to net.Addr) (int, error) {
	if p.shut.Load() {
		return len(b), nil
	}
	return p.PacketConn.WriteTo(b, to)
}

// log collects lines.
type log struct {
	onLine func(line []byte) // may be nil
	mu     sync.Mutex
	buf    bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	if l.onLine != nil {
		l.onLine(p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// router is a member under test.
type router struct {
	*members.Members
	gate    gate
	at      string // its gossip address
	log     log
	changes counter
	early   atomic.Bool // it received before it was a member itself
	stop    func()
}

// counter counts the changes of a list of members.
type counter struct{ atomic.Int64 }

func (c *counter) SetMembers([]members.Member) { c.Add(1) }

// option changes a router before it runs.
type option func(*members.Config, *members.Params)

func named(name string) option {
	return func(c *members.Config, _ *members.Params) { c.Name = name }
}

func joining(list ...string) option {
	return func(c *members.Config, _ *members.Params) { c.Join = list }
}

// start runs a member at the loopback; address "" takes a free port.
func start(t *testing.T, address, key string, options ...option) *router {
	t.Helper()
	r := &router{}
	r.log.onLine = func(line []byte) {
		if bytes.Contains(line, []byte(`msg="in the fleet"`)) && r.gate.receives.Load() {
			r.early.Store(true)
		}
	}
	l, udp := open(t, address)
	r.at = l.Addr().String()
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	id := identity.NewID()
	who, err := identity.New([]byte(key), id)
	if err != nil {
		t.Fatal(err)
	}
	c := members.DefaultConfig()
	c.Listen, c.Name = r.at, "router-"+id
	text := slog.New(slog.NewTextHandler(&r.log, nil))
	p := members.Params{ID: id, GossipKey: who.GossipKey(), Scope: scope.Logged(text), Refused: refusals.New(scope.Logged(text)), Watcher: &r.changes}
	for _, o := range options {
		o(&c, &p)
	}
	r.Members = members.New(c, p)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, members.Sockets{TCP: gatedListener{l, &r.gate}, UDP: gatedPackets{udp, &r.gate}, RPC: rpc.Addr()})
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		rpc.Close()
	})
	t.Cleanup(r.stop)
	return r
}

// open opens TCP and UDP at one port.
func open(t *testing.T, address string) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		at := address
		if at == "" {
			at = "127.0.0.1:0"
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, udp
		}
		l.Close()
	}
	t.Fatal("no port is free for both TCP and UDP")
	return nil, nil
}

// sees are the states of the others by id.
func (r *router) sees() map[string]members.State {
	states := map[string]members.State{}
	for _, m := range r.Others() {
		states[m.ID] = m.State
	}
	return states
}

func (r *router) id() string { return r.Self().ID }

// eventually waits for a condition of real sockets.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond) // real sockets and memberlist's real timers
	}
	return time.Since(began)
}

// together waits until all see all others in a state.
func together(t *testing.T, want members.State, all ...*router) {
	t.Helper()
	eventually(t, 10*time.Second, fmt.Sprintf("%d routers see each other %s", len(all), want), func() bool {
		for _, a := range all {
			states := a.sees()
			for _, b := range all {
				if s, known := states[b.id()]; a != b && (!known || s != want) {
					return false
				}
			}
		}
		return true
	})
}

func TestThreeRoutersFindEachOtherAndLeave(t *testing.T) {
	a := start(t, "", fleetKey, named("a"))
	b := start(t, "", fleetKey, named("b"), joining(a.at))
	c := start(t, "", fleetKey, named("c"), joining("127.0.0.1:1", b.at, a.at))
	together(t, members.Alive, a, b, c)
	for _, m := range a.Others() {
		if m.Address == "" || m.WireMajor != members.WireMajor || m.Started.IsZero() || m.Name != "b" && m.Name != "c" {
			t.Errorf("member %+v", m)
		}
	}
	c.stop()
	took := eventually(t, 5*time.Second, "a and b forget c, which left", func() bool { return len(a.Others()) == 1 && len(b.Others()) == 1 })
	t.Logf("a leave was seen after %s", took)
	if a.changes.Load() < 3 {
		t.Errorf("the watcher was called %d times, want one for each change", a.changes.Load())
	}
}

// One that is asked before it knows itself answers that the fleet is empty: who joins it then finds no member there.
func TestARouterReceivesOnceItIsAMember(t *testing.T) {
	for range 10 {
		r := start(t, "", fleetKey)
		eventually(t, 10*time.Second, "it receives", r.gate.receives.Load)
		if r.stop(); r.early.Load() {
			t.Fatal("it received before it was a member")
		}
	}
}

func TestARouterThatDisappearsIsDeadAndComesBack(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at))
	c := start(t, "", fleetKey, joining(a.at))
	together(t, members.Alive, a, b, c)
	c.gate.shut.Store(true) // c still reaches the others over TCP
	took := eventually(t, 6*time.Second, "c is dead", func() bool { return a.sees()[c.id()] == members.Dead && b.sees()[c.id()] == members.Dead })
	t.Logf("a death was seen after %s", took)
	c.gate.shut.Store(false)
	took = eventually(t, 20*time.Second, "c is back", func() bool { return a.sees()[c.id()] == members.Alive && b.sees()[c.id()] == members.Alive })
	t.Logf("the return was seen after %s", took)
	together(t, members.Alive, a, b, c)
}

func TestAPartedFleetMeetsAgain(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at))
	together(t, members.Alive, a, b)
	a.gate.shut.Store(true)
	b.gate.shut.Store(true)
	together(t, members.Dead, a, b)
	time.Sleep(time.Second) // several rounds of joining fail, on real sockets
	a.gate.shut.Store(false)
	b.gate.shut.Store(false)
	took := eventually(t, 20*time.Second, "they meet", func() bool { return a.sees()[b.id()] == members.Alive && b.sees()[a.id()] == members.Alive })
	t.Logf("they met after %s", took)
}

func TestARestartedRouterReplacesItsEarlierLife(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at), named("b"))
	together(t, members.Alive, a, b)
	old := b.id()
	b.stop()
	again := start(t, b.at, fleetKey, joining(a.at), named("b"))
	together(t, members.Alive, a, again)
	eventually(t, 5*time.Second, "the earlier life is forgotten", func() bool { _, known := a.sees()[old]; return !known })
	if name := a.Others()[0].Name; name != "b" {
		t.Errorf("its name is %q, want b", name)
	}
}

// resolver has one name.
type resolver map[string][]string

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, ip := range r[host] {
		list = append(list, netip.MustParseAddr(ip))
	}
	if list == nil {
		return nil, errors.New("no such host")
	}
	return list, nil
}

func TestANameThatListsTheRouterItself(t *testing.T) {
	names := func(c *members.Config, p *members.Params) {
		_, port, _ := net.SplitHostPort(c.Listen)
		c.Join = []string{"routers.test:" + port, "unknown.test:1", "routers.test:1"}
		p.Resolver = resolver{"routers.test": {"127.0.0.1", "::ffff:127.0.0.1"}}
	}
	a := start(t, "", fleetKey, names)
	_, port, _ := net.SplitHostPort(a.at)
	b := start(t, "", fleetKey, names, func(c *members.Config, _ *members.Params) { c.Join = append(c.Join, "routers.test:"+port) })
	together(t, members.Alive, a, b)
	if text := a.log.String() + b.log.String(); strings.Contains(text, "level=WARN") || strings.Contains(text, "refused") {
		t.Errorf("log:\n%s", text)
	}
}

func TestAnotherKeyIsRefusedByBoth(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey+"!", joining(a.at))
	eventually(t, 5*time.Second, "both say that the keys differ", func() bool {
		return strings.Contains(a.log.String(), "reason=key") && strings.Contains(a.log.String(), "from=127.0.0.1") && strings.Contains(b.log.String(), "reason=key")
	})
	if len(a.Others())+len(b.Others()) != 0 {
		t.Errorf("members %v and %v", a.Others(), b.Others())
	}
	if n := strings.Count(a.log.String(), "reason=key"); n != 1 {
		t.Errorf("%d lines about one source, want 1", n)
	}
}

func TestAnotherWireVersionIsAStranger(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at), func(_ *members.Config, p *members.Params) { p.WireMajor = members.WireMajor - 1 })
	together(t, members.Stranger, a, b)
	if !strings.Contains(a.log.String(), "reason=wire") || !strings.Contains(b.log.String(), "reason=wire") {
		t.Errorf("logs:\n%s%s", a.log.String(), b.log.String())
	}
}

func TestTwoRoutersOfOneNameAreShownWithTheirIDs(t *testing.T) {
	a := start(t, "", fleetKey, named("a"))
	b := start(t, "", fleetKey, named("same"), joining(a.at))
	c := start(t, "", fleetKey, named("same"), joining(a.at))
	together(t, members.Alive, a, b, c)
	for _, m := range a.Others() {
		if m.Name != "same-"+m.ID {
			t.Errorf("%s is shown as %q", m.ID, m.Name)
		}
	}
	if !strings.Contains(a.log.String(), "reason=name") || b.Others()[0].Name == b.Others()[1].Name {
		t.Errorf("names %v, log:\n%s", b.Others(), a.log.String())
	}
}

func TestTwoRoutersOfOneIDAreAConflict(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at))
	together(t, members.Alive, a, b)
	liar := start(t, "", fleetKey, joining(a.at), func(_ *members.Config, p *members.Params) { p.ID = b.id() })
	eventually(t, 5*time.Second, "the conflict is logged", func() bool { return strings.Contains(a.log.String(), "reason=conflict") })
	if list := a.Others(); len(list) != 1 || list[0].Address != b.Self().Address {
		t.Errorf("members %+v, want b alone", list)
	}
	liar.stop()
}

func TestAServiceAsAddressToJoinIsNamed(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey)
	service := proxy(t, a.at, b.at)
	c := start(t, "", fleetKey, joining(service))
	eventually(t, 5*time.Second, "c is warned", func() bool { return strings.Contains(c.log.String(), "reason=join") })
	eventually(t, 10*time.Second, "c has joined nevertheless", func() bool { return len(c.Others()) == 2 })
}

// proxy forwards TCP connections to the targets in turn, as a Service does.
func proxy(t *testing.T, targets ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for i := 0; ; i++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", targets[i%len(targets)])
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			pipe := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				to.Close()
			}
			wg.Go(func() { pipe(in, out) })
			wg.Go(func() { pipe(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

func TestGarbageChangesNothing(t *testing.T) {
	a := start(t, "", fleetKey)
	b := start(t, "", fleetKey, joining(a.at))
	together(t, members.Alive, a, b)
	udp, err := net.Dial("udp", a.at)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for i := range 500 {
		_, _ = udp.Write(bytes.Repeat([]byte{byte(i)}, i))
		if i%50 == 0 {
			if tcp, err := net.Dial("tcp", a.at); err == nil {
				_, _ = tcp.Write(bytes.Repeat([]byte{byte(i)}, 4096))
				tcp.Close()
			}
		}
	}
	time.Sleep(300 * time.Millisecond) // real sockets
	together(t, members.Alive, a, b)
	if n := strings.Count(a.log.String(), "\n"); n > 30 {
		t.Errorf("%d lines:\n%s", n, a.log.String())
	}
}
