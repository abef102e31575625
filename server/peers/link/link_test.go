package link_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/identity"
	"github.com/kvpilot/kvpilot/server/peers/link"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/peers/refusals"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fleetKey = "a key of sixteen bytes or more"

// log collects lines.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// node is a router's links, and what its halves have heard.
type node struct {
	*link.Links
	id   string
	at   string
	log  log
	stop func()

	mu    sync.Mutex
	heard []string // guarded by mu: "frontend up b", "decider event a drop 3" and so on
}

func (n *node) hear(format string, args ...any) {
	n.mu.Lock()
	n.heard = append(n.heard, fmt.Sprintf(format, args...))
	n.mu.Unlock()
}

func (n *node) count(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.heard), func(s string) bool { return !strings.HasPrefix(s, what) }))
}

func (n *node) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.heard)
}

type option func(*link.Params)

// newNode makes a node that records what it hears and answers each question with a choice.
func newNode(t testing.TB, id, key string, options ...option) *node {
	t.Helper()
	who, err := identity.New([]byte(key), id)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{id: id}
	text := slog.New(slog.NewTextHandler(&n.log, nil))
	p := link.Params{
		ID: id, Name: "name-" + id, Identity: who, Refused: refusals.New(scope.Logged(text)), Scope: scope.Logged(text),
		Able: n, Frontend: frontend{n}, Decider: decider{n},
	}
	for _, o := range options {
		o(&p)
	}
	if n.Links, err = link.New(p); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) Ability() pb.Ability { return pb.Ability_ABILITY_ABLE }

// frontend and decider are the halves of a node: they record, and the decider answers.
type frontend struct{ n *node }

func (f frontend) Up(id string, a pb.Ability) { f.n.hear("frontend up %s %s", id, a) }
func (f frontend) Down(id string)             { f.n.hear("frontend down %s", id) }
func (f frontend) Reply(from string, r *pb.DeciderReply) {
	f.n.hear("frontend reply %s %d", from, r.GetChosen().GetNumber())
}

type decider struct{ n *node }

func (d decider) Up(id string)   { d.n.hear("decider up %s", id) }
func (d decider) Down(id string) { d.n.hear("decider down %s", id) }
func (d decider) Event(from string, e *pb.FrontendEvent) {
	d.n.hear("decider event %s %d", from, e.GetAsk().GetNumber())
	d.n.SendReply(from, &pb.DeciderReply{Reply: &pb.DeciderReply_Chosen{Chosen: &pb.Chosen{Number: e.GetAsk().GetNumber()}}})
}

type unable struct{}

func (unable) Ability() pb.Ability { return pb.Ability_ABILITY_UNABLE }

// blocked is a decider that takes no event until its channel is closed.
type blocked struct {
	link.Decider
	until chan struct{}
}

func (b blocked) Event(string, *pb.FrontendEvent) { <-b.until }

// services answer with what they were passed.
type services struct{}

func (services) ShareFacts(context.Context, *pb.ShareFactsRequest) (*pb.ShareFactsResponse, error) {
	return &pb.ShareFactsResponse{Digest: 7}, nil
}

func (services) PullIndex(from string, _ *pb.PullIndexRequest, out grpc.ServerStreamingServer[pb.PullIndexResponse]) error {
	return out.Send(&pb.PullIndexResponse{Data: []byte(from)})
}

// start runs a node at a free port, or at the one given.
func start(t testing.TB, n *node, at string) *node {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	n.at = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func run(t testing.TB, id string, options ...option) *node {
	t.Helper()
	return start(t, newNode(t, id, fleetKey, options...), "127.0.0.1:0")
}

func member(id, at string) members.Member {
	return members.Member{ID: id, Address: at, WireMajor: members.WireMajor, State: members.Alive}
}

// meet gives all nodes each other's addresses.
func meet(all ...*node) {
	var list []members.Member
	for _, n := range all {
		list = append(list, member(n.id, n.at))
	}
	for _, n := range all {
		n.SetMembers(list)
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(2 * time.Millisecond) // real sockets
	}
	return time.Since(began)
}

// linked waits until all are linked with all.
func linked(t testing.TB, all ...*node) {
	t.Helper()
	eventually(t, 10*time.Second, "all links are up", func() bool {
		for _, n := range all {
			if len(n.Peers()) != len(all)-1 || n.count("frontend up") < len(all)-1 || n.count("decider up")-n.count("decider down") != len(all)-1 {
				return false
			}
		}
		return true
	})
}

func ask(number uint64) *pb.FrontendEvent {
	return &pb.FrontendEvent{Event: &pb.FrontendEvent_Ask{Ask: &pb.Ask{Number: number, Id: fmt.Sprintf("request-%d", number)}}}
}

func TestMessagesArriveInOrderBothWays(t *testing.T) {
	a, b, c := run(t, "0000000a"), run(t, "0000000b"), run(t, "0000000c")
	meet(a, b, c)
	linked(t, a, b, c)
	const n = 5000
	for i := range uint64(n) {
		a.SendEvent(b.id, ask(i+1))
		if i%3 == 0 {
			c.SendEvent(b.id, ask(i+1))
		}
	}
	eventually(t, 10*time.Second, "all answers are there", func() bool { return a.count("frontend reply") == n && c.count("frontend reply") == (n+2)/3 })
	for _, node := range []*node{a, c} {
		last := uint64(0)
		for _, s := range node.all() {
			var from string
			var number uint64
			if k, _ := fmt.Sscanf(s, "frontend reply %s %d", &from, &number); k == 2 {
				if number <= last || from != b.id {
					t.Fatalf("%s: %q after %d", node.id, s, last)
				}
				last = number
			}
		}
	}
	if first := a.all()[0]; !strings.HasPrefix(first, "frontend up") && !strings.HasPrefix(first, "decider up") {
		t.Errorf("the first call was %q, want Up", first)
	}
	a.stop()
	eventually(t, 5*time.Second, "both halves are down at the others", func() bool {
		return b.count("frontend down "+a.id) == 1 && b.count("decider down "+a.id) == 1 && c.count("frontend down "+a.id) == 1
	})
	if a.count("frontend down") != 2 || a.count("decider down") != 2 {
		t.Errorf("a heard %q", a.all()[len(a.all())-4:])
	}
	a.SendEvent(b.id, ask(1)) // nothing happens
	a.SendReply(b.id, &pb.DeciderReply{})
	if _, ok := a.Conn(b.id); ok || len(a.Peers()) != 0 {
		t.Error("a stopped node has connections")
	}
}

func TestAbilitiesAndNamesAreExchanged(t *testing.T) {
	a, b := run(t, "0000000a"), run(t, "0000000b", func(p *link.Params) {
		p.Able = unable{}
	})
	meet(a, b)
	linked(t, a, b)
	if a.count("frontend up 0000000b ABILITY_UNABLE") != 1 || b.count("frontend up 0000000a ABILITY_ABLE") != 1 {
		t.Errorf("heard %q and %q", a.all(), b.all())
	}
}

func TestARestartedPeerIsDialedAgain(t *testing.T) {
	a, b := run(t, "0000000a"), run(t, "0000000b")
	meet(a, b)
	linked(t, a, b)
	b.stop()
	eventually(t, 5*time.Second, "the link is down", func() bool { return a.count("frontend down") == 1 && a.count("decider down") == 1 })
	again := start(t, newNode(t, b.id, fleetKey), b.at)
	again.SetMembers([]members.Member{member(a.id, a.at)})
	took := eventually(t, 5*time.Second, "the link is up again", func() bool { return len(a.Peers()) == 1 && len(again.Peers()) == 1 })
	t.Logf("the link was up again after %s", took)
	a.SendEvent(b.id, ask(7))
	eventually(t, 5*time.Second, "an answer", func() bool { return a.count("frontend reply 0000000b 7") == 1 })
}

func TestMembersThatAreNotListedAreHungUpOn(t *testing.T) {
	a, b := run(t, "0000000a"), run(t, "0000000b")
	meet(a, b)
	linked(t, a, b)
	dead := member(b.id, b.at)
	dead.State = members.Dead
	a.SetMembers([]members.Member{dead})
	time.Sleep(50 * time.Millisecond) // a link that works is kept, whatever the gossip says
	if len(a.Peers()) != 1 {
		t.Error("a dead member's link was closed")
	}
	stranger := member(b.id, b.at)
	stranger.State = members.Stranger
	a.SetMembers([]members.Member{stranger})
	eventually(t, 5*time.Second, "the link to a stranger is down", func() bool { return a.count("frontend down") == 1 && b.count("decider down") == 1 })
}

func TestAnAddressThatLeadsToAnotherRouterIsRefused(t *testing.T) {
	a, b, c := run(t, "0000000a"), run(t, "0000000b"), run(t, "0000000c")
	service := newProxy(t, c.at)
	a.SetMembers([]members.Member{member(b.id, service.at), member(c.id, c.at)})
	eventually(t, 5*time.Second, "it is logged", func() bool { return strings.Contains(a.log.String(), "reason=address") })
	eventually(t, 5*time.Second, "the other router is linked", func() bool { return slices.Equal(a.Peers(), []string{c.id}) })
	if text := a.log.String(); !strings.Contains(text, "expected=0000000b") || !strings.Contains(text, "reached=0000000c") {
		t.Errorf("log:\n%s", text)
	}
	service.target.Store(&b.at)
	eventually(t, 5*time.Second, "the right router is linked", func() bool { return len(a.Peers()) == 2 })
}

func TestRefusedRouters(t *testing.T) {
	for name, c := range map[string]struct {
		id, key  string
		change   option
		at, peer string // what the logs of either have
	}{
		"another key":  {"0000000b", fleetKey + "!", func(*link.Params) {}, "reason=handshake", "reason=key"},
		"another wire": {"0000000b", fleetKey, func(p *link.Params) { p.WireMajor = 9 }, "reason=wire", "reason=handshake"},
		"another name": {"0000000b", fleetKey, func(p *link.Params) { p.ID = "0000000c" }, "reason=identity", "reason=handshake"},
		"itself":       {"0000000a", fleetKey, func(p *link.Params) { p.ID = "0000000b" }, "reason=identity", "reason=handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			a := run(t, "0000000a")
			liar := start(t, newNode(t, c.id, c.key, c.change), "127.0.0.1:0")
			liar.SetMembers([]members.Member{member(a.id, a.at)})
			eventually(t, 10*time.Second, "both log it", func() bool {
				return strings.Contains(a.log.String(), c.at) && strings.Contains(liar.log.String(), c.peer)
			})
			if len(a.all())+len(liar.all()) != 0 {
				t.Errorf("heard %q and %q", a.all(), liar.all())
			}
		})
	}
}

// proxy forwards connections to one target at a time, and may cut or hang them.
type proxy struct {
	at     string
	target atomic.Pointer[string]
	hangs  atomic.Bool

	mu   sync.Mutex
	open []net.Conn
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{at: l.Addr().String()}
	p.target.Store(&target)
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	pipe := func(to, from net.Conn) {
		defer to.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			for p.hangs.Load() {
				select {
				case <-stopped:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", *p.target.Load())
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, in, out)
			p.mu.Unlock()
			wg.Go(func() { pipe(in, out) })
			wg.Go(func() { pipe(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(stopped)
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}

func TestALinkThatIsCutComesBack(t *testing.T) {
	a, b := run(t, "0000000a"), run(t, "0000000b")
	p := newProxy(t, b.at)
	a.SetMembers([]members.Member{member(b.id, p.at)})
	for i := range 3 {
		took := eventually(t, 5*time.Second, "the link is up", func() bool { return a.count("frontend up") == i+1 && b.count("decider up") == i+1 })
		t.Logf("the link was up after %s", took)
		p.cut()
		eventually(t, 5*time.Second, "the link is down", func() bool { return a.count("frontend down") == i+1 && b.count("decider down") == i+1 })
	}
}

func TestAPathThatHangsIsNoticed(t *testing.T) {
	a, b := run(t, "0000000a"), run(t, "0000000b")
	p := newProxy(t, b.at)
	a.SetMembers([]members.Member{member(b.id, p.at)})
	eventually(t, 5*time.Second, "the link is up", func() bool { return len(a.Peers()) == 1 })
	p.hangs.Store(true)
	took := eventually(t, 8*time.Second, "the decider's half is down", func() bool { return b.count("decider down") == 1 })
	t.Logf("the decider's half was down after %s", took)
	p.hangs.Store(false)
	eventually(t, 8*time.Second, "the link is up again", func() bool { return b.count("decider up") == 2 && a.count("frontend up") == 2 })
}

func TestAPeerThatReadsNothingLosesItsLink(t *testing.T) {
	block := make(chan struct{})
	a, b := run(t, "0000000a"), run(t, "0000000b", func(p *link.Params) {
		p.Decider = blocked{p.Decider, block}
	})
	a.SetMembers([]members.Member{member(b.id, b.at)})
	eventually(t, 5*time.Second, "the link is up", func() bool { return len(a.Peers()) == 1 })
	keys := &pb.BlockKeys{BlockSize: 16, Keys: make([]uint64, 1<<17)}
	began := time.Now()
	for i := range uint64(64) {
		e := ask(i + 1)
		e.GetAsk().Keys = []*pb.BlockKeys{keys}
		a.SendEvent(b.id, e)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("SendEvent took %s of 64 calls: it must not block", took)
	}
	eventually(t, 5*time.Second, "the link is down", func() bool { return a.count("frontend down") == 1 })
	close(block)
	eventually(t, 5*time.Second, "the link is up again", func() bool { return a.count("frontend up") == 2 })
	if !strings.Contains(a.log.String(), "reason=limit") {
		t.Errorf("log:\n%s", a.log.String())
	}
}

func TestServicesOfMembersOnly(t *testing.T) {
	a := run(t, "0000000a", func(p *link.Params) {
		p.Facts, p.Index = services{}, services{}
	})
	b := run(t, "0000000b")
	meet(a, b)
	linked(t, a, b)
	conn, ok := b.Conn(a.id)
	if !ok {
		t.Fatal("there is no connection")
	}
	client := pb.NewFactsServiceClient(conn)
	facts, err := client.ShareFacts(t.Context(), &pb.ShareFactsRequest{})
	if err != nil || facts.GetDigest() != 7 {
		t.Errorf("ShareFacts: %v, %v", facts, err)
	}
	_, err = client.ShareFacts(t.Context(), &pb.ShareFactsRequest{Facts: &pb.Facts{Drains: []*pb.DrainFact{{}}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a rule of the contract is broken, and the error is %v", err)
	}
	stream, err := pb.NewIndexServiceClient(conn).PullIndex(t.Context(), &pb.PullIndexRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if piece, err := stream.Recv(); err != nil || string(piece.GetData()) != b.id {
		t.Errorf("PullIndex: %v, %v", piece, err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("PullIndex ends with %v", err)
	}
	back, _ := a.Conn(b.id)
	if _, err := pb.NewFactsServiceClient(back).ShareFacts(t.Context(), &pb.ShareFactsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a service that is not there: %v", err)
	}
}
