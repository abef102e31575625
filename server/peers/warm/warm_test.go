package warm

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	goleak.VerifyTestMain(m)
}

// router is the part of a router that knows what engines hold.
type router struct {
	index *kvindex.Index
	plane *kvevents.Plane
	warm  *Warm
	log   *lines
	peers []Peer
	late  bool
}

func (r *router) IndexPeers() []Peer { return r.peers }

func (r *router) Missing() []replica.ID {
	for _, s := range r.plane.Statuses() {
		if s.Connected && !s.Recovering && s.State != kvblock.FeedExact {
			return []replica.ID{"r"}
		}
	}
	return nil
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// feeds join index and plane as package server does.
type feeds struct{ r *router }

func (f feeds) Still(slot replica.Slot, do func([]byte)) { f.r.plane.Still(slot, do) }

func (f feeds) Continue(slot replica.Slot, position []byte, larger bool, fill func()) kvindex.Continued {
	switch f.r.plane.Continue(slot, position, larger, fill) {
	case kvevents.ContinuedHere:
		return kvindex.ContinuedHere
	case kvevents.ContinuedThere:
		return kvindex.ContinuedThere
	case kvevents.ContinuedNone:
	}
	return kvindex.ContinuedNone
}

func startRouter(t testing.TB, peers ...Peer) *router {
	t.Helper()
	return (&router{log: &lines{}, peers: peers}).start(t)
}

// startLate starts a router as one is that looked for peers in vain.
func startLate(t testing.TB, peers ...Peer) *router {
	t.Helper()
	return (&router{log: &lines{}, peers: peers, late: true}).start(t)
}

func (r *router) start(t testing.TB) *router {
	t.Helper()
	config := kvindex.DefaultConfig()
	r.index = kvindex.New(config, kvindex.Params{Feeds: feeds{r}})
	r.plane = kvevents.New(kvevents.DefaultConfig(), kvevents.Params{Sink: r.index})
	r.warm = New(Params{
		Index: r.index, MaxBytes: int64(config.MaxBytes), Fleet: r, Feeds: r.plane,
		AgainEvery: 5 * time.Millisecond, Scope: scope.New(slog.New(slog.NewTextHandler(r.log, nil)), nil, nil),
	})
	warming := r.warm.Run
	if r.late {
		warming = func(ctx context.Context) error { r.warm.pullMissing(ctx); return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{r.index.Run, r.plane.Run, warming} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

// follow adds the engines as ranks of one replica.
func (r *router) follow(t testing.TB, engines []*engine) {
	t.Helper()
	for i, e := range engines {
		if err := r.index.AddRank(replica.Slot(i), kvindex.RankInfo{Rank: replica.Rank{Replica: "r", Index: i}, BlockSize: blockSize}); err != nil {
			t.Fatal(err)
		}
		r.plane.Add(replica.Slot(i), e.events, fmt.Sprint(i))
		r.index.Claim(replica.Slot(i))
	}
}

// exact reports whether all ranks are, with so many blocks.
func (r *router) exact(ranks int, blocks int64) bool {
	for i := range ranks {
		if r.index.State(replica.Slot(i)) != kvblock.FeedExact {
			return false
		}
	}
	return r.index.Stats().Blocks == blocks
}

const blockSize = 4

// engine publishes events; its ring of past batches is short.
type engine struct {
	pub    *zmtp.Publisher
	events replica.Events
	blocks int64
	number int
	batch  int
}

func startEngines(t testing.TB, n, ring int) []*engine {
	t.Helper()
	var list []*engine
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	t.Cleanup(func() { cancel(); serving.Wait() })
	for i := range n {
		e := &engine{pub: zmtp.NewPublisher(zmtp.PublisherParams{Buffer: ring}), number: i}
		for _, part := range []struct {
			at    *string
			serve func(context.Context, net.Listener) error
		}{{&e.events.Endpoint, e.pub.Serve}, {&e.events.Replay, e.pub.ServeReplay}} {
			l, err := zmtp.Listen(t.Context(), "tcp://127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			*part.at = "tcp://" + l.Addr().String()
			serving.Go(func() {
				if err := part.serve(ctx, l); err != nil {
					t.Error(err)
				}
			})
		}
		e.events.Rank = i
		list = append(list, e)
	}
	return list
}

// store publishes a batch of n blocks that no other batch has.
func (e *engine) store(n int) {
	e.batch++
	hashes, tokens := make([]uint64, n), make([]uint32, n*blockSize)
	for i := range hashes {
		hashes[i] = uint64(e.number)<<48 | uint64(e.batch)<<32 | uint64(i+1)
	}
	for i := range tokens {
		tokens[i] = uint32(e.number*7919+e.batch*104_729+i) % 150_000
	}
	e.blocks += int64(n)
	e.pub.Publish(vllmtest.Newest().Batch(1.7e9, 0, vllmtest.Stored(hashes, nil, tokens, blockSize)))
}

func total(engines []*engine) (n int64) {
	for _, e := range engines {
		n += e.blocks
	}
	return n
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// window is package link's.
const window = 1 << 20

// peer serves PullIndex on the loopback.
type peer struct {
	peerv1.UnimplementedIndexServiceServer
	pull func(*peerv1.PullIndexRequest, grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error
}

func (p peer) PullIndex(in *peerv1.PullIndexRequest, out grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
	return p.pull(in, out)
}

func serve(t testing.TB, id string, pull func(*peerv1.PullIndexRequest, grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error) Peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	peerv1.RegisterIndexServiceServer(s, peer{pull: pull})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); s.Stop(); <-done })
	return Peer{id, conn}
}

func (r *router) serve(t testing.TB, id string) Peer {
	t.Helper()
	return serve(t, id, func(in *peerv1.PullIndexRequest, out grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
		return r.warm.PullIndex("test", in, out)
	})
}

// ring is the number of past batches that engines keep.
const ring = 30

// peerOf starts engines whose rings are too short for a replay from the start, and a router that has followed them since.
func peerOf(t testing.TB, ranks, batches, blocks int) ([]*engine, *router) {
	t.Helper()
	engines := startEngines(t, ranks, ring)
	old := startRouter(t)
	old.follow(t, engines)
	eventually(t, "the first router follows", func() bool { return old.exact(ranks, 0) })
	for range batches {
		for _, e := range engines {
			e.store(blocks)
		}
		eventually(t, "the first router is exact", func() bool { return old.exact(ranks, total(engines)) })
	}
	return engines, old
}

func TestANewRouterKnowsWhatItsPeerKnows(t *testing.T) {
	t.Parallel()
	engines, old := peerOf(t, 4, 40, 50)
	cold := startRouter(t)
	cold.follow(t, engines)
	next := startRouter(t, old.serve(t, "old"))
	next.follow(t, engines)
	for range 20 { // events continue
		for _, e := range engines {
			e.store(3)
		}
		time.Sleep(time.Millisecond)
	}
	eventually(t, "the new router is exact", func() bool { return next.exact(4, total(engines)) && next.warm.Settled() })
	if cold.exact(4, total(engines)) {
		t.Error("replays alone would do: the test shows nothing")
	}
	if log := next.log.String(); !strings.Contains(log, "the index of a peer was pulled") {
		t.Errorf("the log has\n%s", log)
	}
	// Ranks that are found after the pull.
	late := startRouter(t, old.serve(t, "old"))
	eventually(t, "the index was pulled", late.warm.Settled)
	late.follow(t, engines)
	eventually(t, "the late ranks are exact", func() bool { return late.exact(4, total(engines)) })
}

// A router that found no peer at its start, or has lost events since, is exact as soon as a peer is that has what it lacks.
func TestWhatIsMissingIsPulledLater(t *testing.T) {
	t.Parallel()
	engines, old := peerOf(t, 3, 40, 50)
	ignorant := startRouter(t)
	ignorant.follow(t, engines)
	eventually(t, "replays are over", func() bool { return len(ignorant.Missing()) > 0 })
	alone := startLate(t, ignorant.serve(t, "ignorant"))
	alone.follow(t, engines)
	eventually(t, "replays are over", func() bool { return len(alone.Missing()) > 0 })
	next := startLate(t, ignorant.serve(t, "ignorant"), old.serve(t, "old"))
	next.follow(t, engines)
	for range 20 { // events continue
		for _, e := range engines {
			e.store(3)
		}
		time.Sleep(time.Millisecond)
	}
	eventually(t, "the late router is exact", func() bool { return next.exact(3, total(engines)) })
	if log := alone.log.String(); alone.exact(3, total(engines)) || log != "" {
		t.Errorf("a router whose only peer knows no more is exact, or says\n%s", log)
	}
}

// A peer that cannot be relied on costs no more than the wait for it.
func TestPeersThatFail(t *testing.T) {
	t.Parallel()
	engines, old := peerOf(t, 3, 35, 40)
	var whole bytes.Buffer
	if err := old.index.Snapshot(&whole); err != nil {
		t.Fatal(err)
	}
	file := whole.Bytes()
	send := func(data []byte, then func(context.Context) error) func(*peerv1.PullIndexRequest, grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
		return func(_ *peerv1.PullIndexRequest, out grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
			for len(data) > 0 {
				n := min(len(data), 1000)
				if err := out.Send(&peerv1.PullIndexResponse{Data: data[:n]}); err != nil {
					return err
				}
				data = data[n:]
			}
			return then(out.Context())
		}
	}
	end := func(context.Context) error { return nil }
	flipped := bytes.Clone(file)
	flipped[len(file)/2] ^= 4
	for name, tc := range map[string]struct {
		pull func(*peerv1.PullIndexRequest, grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error
		want string
	}{
		"truncated":      {send(file[:len(file)*2/3], end), "it ends early"},
		"empty":          {send(nil, end), "it ends early"},
		"corrupt":        {send(flipped, end), "checksum"},
		"another format": {send(append([]byte("KVPIDX99"), file[8:]...), end), "another format"},
		"an error":       {send(file[:len(file)/2], func(context.Context) error { return status.Error(codes.Internal, "broken") }), "broken"},
		"no such method": {send(nil, func(context.Context) error { return status.Error(codes.Unimplemented, "unknown method") }), "unknown method"},
		"hangs": {send(file[:len(file)/2], func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}), "sent nothing for too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := startRouter(t, serve(t, "bad", tc.pull), old.serve(t, "good"))
			next.follow(t, engines)
			eventually(t, "the new router is exact", func() bool { return next.exact(3, total(engines)) && next.warm.Settled() })
			if log := next.log.String(); !strings.Contains(log, tc.want) || !strings.Contains(log, "the index of a peer was pulled") {
				t.Errorf("want a line about %q and one about the other peer:\n%s", tc.want, log)
			}
		})
	}
}

func TestOneBadPeerAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for five seconds")
	}
	t.Parallel()
	engines := startEngines(t, 2, 100)
	for _, e := range engines {
		e.store(10)
	}
	bad := serve(t, "bad", func(*peerv1.PullIndexRequest, grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
		return status.Error(codes.ResourceExhausted, "busy")
	})
	r := startRouter(t, bad)
	r.follow(t, engines)
	eventually(t, "replays fill the index", func() bool { return r.exact(2, total(engines)) })
	eventually(t, "the router settles", r.warm.Settled)
	if log := r.log.String(); !strings.Contains(log, "busy") || !strings.Contains(log, "replays alone") {
		t.Errorf("the log has\n%s", log)
	}
}

func TestPullsAreBounded(t *testing.T) {
	t.Parallel()
	_, old := peerOf(t, 1, 1, 10)
	for range maxServed {
		old.warm.serving <- struct{}{}
	}
	at := old.serve(t, "old")
	stream, err := peerv1.NewIndexServiceClient(at.Conn).PullIndex(t.Context(), &peerv1.PullIndexRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one pull too many: %v", err)
	}
	for range maxServed {
		<-old.warm.serving
	}
	endless := New(Params{Index: old.index, MaxBytes: 1 << 20, Fleet: &router{}})
	flood := serve(t, "flood", func(_ *peerv1.PullIndexRequest, out grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
		for {
			if err := out.Send(&peerv1.PullIndexResponse{Data: floodPiece}); err != nil {
				return err
			}
		}
	})
	var log lines
	endless.log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := endless.attempt(t.Context(), flood, &peerv1.PullIndexRequest{}); err == nil {
		t.Error("an endless index was taken")
	}
}

// floodPiece is no snapshot.
var floodPiece = make([]byte, 64<<10)
