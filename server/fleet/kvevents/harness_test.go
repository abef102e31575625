package kvevents_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

func TestMain(m *testing.M) {
	// Most of these tests wait for sockets: more of them at once than processors.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// place is where a block lies.
type place struct {
	tier kvblock.Tier
	hash kvblock.EngineHash
}

// mapSink is the simplest Sink: copies of each block, counted.
type mapSink struct {
	mu     sync.Mutex
	held   map[replica.Slot]map[place]int
	states map[replica.Slot]kvblock.FeedState
	resets map[replica.Slot]int
	busy   map[replica.Slot]bool
	gate   chan struct{} // when not nil, Store waits for it
	fault  string
}

func newSink() *mapSink {
	return &mapSink{
		held: map[replica.Slot]map[place]int{}, states: map[replica.Slot]kvblock.FeedState{},
		resets: map[replica.Slot]int{}, busy: map[replica.Slot]bool{},
	}
}

// enter checks that calls for one slot never overlap.
func (s *mapSink) enter(slot replica.Slot) func() {
	s.mu.Lock()
	if s.busy[slot] {
		s.fault = fmt.Sprintf("two calls for slot %d at once", slot)
	}
	s.busy[slot] = true
	if s.held[slot] == nil {
		s.held[slot] = map[place]int{}
	}
	return func() { s.busy[slot] = false; s.mu.Unlock() }
}

func (s *mapSink) Store(slot replica.Slot, ev *kvblock.Stored) {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	defer s.enter(slot)()
	for _, h := range ev.Hashes {
		s.held[slot][place{ev.Tier, h}]++
	}
}

func (s *mapSink) Remove(slot replica.Slot, ev *kvblock.Removed) {
	defer s.enter(slot)()
	for _, h := range ev.Hashes {
		p := place{ev.Tier, h}
		if s.held[slot][p]--; s.held[slot][p] <= 0 {
			delete(s.held[slot], p)
		}
	}
}

func (s *mapSink) Clear(slot replica.Slot, tier kvblock.Tier, all bool) {
	defer s.enter(slot)()
	maps.DeleteFunc(s.held[slot], func(p place, _ int) bool { return all || p.tier == tier })
}

func (s *mapSink) Reset(slot replica.Slot) {
	defer s.enter(slot)()
	s.resets[slot]++
	clear(s.held[slot])
}

func (s *mapSink) SetState(slot replica.Slot, state kvblock.FeedState) {
	defer s.enter(slot)()
	s.states[slot] = state
}

func (s *mapSink) content(slot replica.Slot) map[place]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.held[slot])
}

func (s *mapSink) state(slot replica.Slot) kvblock.FeedState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[slot]
}

// engine is a publisher with a cache whose true content is known.
type engine struct {
	t       *testing.T
	layout  vllmtest.Layout
	params  zmtp.PublisherParams
	live    string // endpoints; fixed over restarts
	replays string

	single bool // each block is a prompt of its own

	pub  *zmtp.Publisher
	stop func()
	held map[place]int
	next uint64 // hash of the next block
}

func startEngine(t *testing.T, params zmtp.PublisherParams) *engine {
	t.Helper()
	e := &engine{t: t, layout: vllmtest.Newest(), params: params, live: "tcp://127.0.0.1:0", replays: "tcp://127.0.0.1:0", next: 1}
	e.start()
	t.Cleanup(func() { e.kill() })
	return e
}

// start begins an engine life on the endpoints of the one before.
func (e *engine) start() {
	e.t.Helper()
	e.held = map[place]int{}
	e.pub = zmtp.NewPublisher(e.params)
	ctx, cancel := context.WithCancel(e.t.Context())
	var served sync.WaitGroup
	for _, part := range []struct {
		endpoint *string
		serve    func(context.Context, net.Listener) error
	}{{&e.live, e.pub.Serve}, {&e.replays, e.pub.ServeReplay}} {
		ln := listen(e.t, *part.endpoint)
		*part.endpoint = "tcp://" + ln.Addr().String()
		served.Go(func() {
			if err := part.serve(ctx, ln); err != nil {
				e.t.Errorf("serve: %v", err)
			}
		})
	}
	e.stop = sync.OnceFunc(func() { cancel(); served.Wait() })
}

// listen retries: the sockets of a life that just ended may linger.
func listen(t *testing.T, endpoint string) net.Listener {
	t.Helper()
	var ln net.Listener
	eventually(t, "listen on "+endpoint, func() bool {
		var err error
		ln, err = zmtp.Listen(t.Context(), endpoint)
		return err == nil
	})
	return ln
}

func (e *engine) kill() { e.stop() }

func (e *engine) restart() {
	e.t.Helper()
	e.kill()
	e.start()
}

func (e *engine) events() replica.Events {
	return replica.Events{Endpoint: e.live, Replay: e.replays, Topic: e.params.Topic}
}

// change makes a batch that stores n blocks and removes some of those held, and applies it to the
// engine's own content.
func (e *engine) change(n, remove int) []byte {
	var events []vllmtest.Event
	if n > 0 {
		var hashes []uint64
		var ids []uint32
		for range n {
			hashes = append(hashes, e.next)
			ids = append(ids, blockTokens(e.next)...)
			e.held[place{kvblock.TierGPU, kvblock.EngineHash(e.next)}]++
			e.next++
			if e.single {
				events = append(events, vllmtest.Stored(hashes, nil, ids, 4))
				hashes, ids = nil, nil
			}
		}
		if !e.single {
			events = append(events, vllmtest.Stored(hashes, nil, ids, 4))
		}
	}
	for p := range e.held {
		if remove == 0 {
			break
		}
		remove--
		if e.held[p]--; e.held[p] == 0 {
			delete(e.held, p)
		}
		events = append(events, vllmtest.Removed(uint64(p.hash)))
	}
	return e.batch(events...)
}

// blockTokens are the tokens of the block that engines name h.
func blockTokens(h uint64) []uint32 {
	first := uint32(h) * 4
	return []uint32{first, first + 1, first + 2, first + 3}
}

func (e *engine) batch(events ...vllmtest.Event) []byte {
	return e.layout.Batch(float64(time.Now().UnixNano())/1e9, 0, events...)
}

func (e *engine) publish(n, remove int) { e.pub.Publish(e.change(n, remove)) }

func (e *engine) clear() {
	clear(e.held)
	e.pub.Publish(e.batch(vllmtest.Cleared()))
}

// quick is a configuration whose waits are short.
func quick() kvevents.Config {
	c := kvevents.DefaultConfig()
	c.Heartbeat = 5 * time.Second // tests run on busy machines
	c.ReplayTimeout = 500 * time.Millisecond
	c.ReconnectMax = 100 * time.Millisecond
	c.Probe = 300 * time.Millisecond
	return c
}

// startPlane runs a Plane until the test ends.
func startPlane(t *testing.T, c kvevents.Config) (*kvevents.Plane, *mapSink) {
	t.Helper()
	sink := newSink()
	return startPlaneWith(t, c, sink, sink), sink
}

// startPlaneWith runs a Plane with a sink around the simplest one.
// followEngine starts an engine and a plane that follows it, and waits until the plane has the engine's first blocks.
func followEngine(t *testing.T, c kvevents.Config) (*engine, *kvevents.Plane, *mapSink) {
	t.Helper()
	e := startEngine(t, zmtp.PublisherParams{})
	p, sink := startPlane(t, c)
	p.Add(slot, e.events(), "a/0")
	e.publish(4, 0)
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	return e, p, sink
}

func startPlaneWith(t *testing.T, c kvevents.Config, outer kvevents.Sink, sink *mapSink) *kvevents.Plane {
	t.Helper()
	p := kvevents.New(c, kvevents.Params{Sink: outer})
	run(t, p, sink)
	return p
}

// run runs a Plane until the test ends.
func run(t *testing.T, p *kvevents.Plane, sink *mapSink) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if sink.fault != "" {
			t.Error(sink.fault)
		}
	})
}

// eventually polls what real sockets need a moment for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// expect waits until slot has the state and the engine's content. The report it returns is that of all
// batches: the sink may have the last one's blocks before the report counts it.
func expect(t *testing.T, p *kvevents.Plane, sink *mapSink, slot replica.Slot, e *engine, state kvblock.FeedState) kvevents.Status {
	t.Helper()
	deadline, settled := time.Now().Add(60*time.Second), time.Now()
	for {
		s, _ := p.Status(slot)
		if s.State == state && sink.state(slot) == state && maps.Equal(sink.content(slot), e.held) {
			if n := e.pub.Next(); n == 0 || s.Next == n || time.Since(settled) > 2*time.Second { // 0: published by somebody else
				return s
			}
		} else {
			settled = time.Now()
		}
		if time.Now().After(deadline) {
			t.Fatalf("want %v with %d blocks, next %d; got %d blocks, status %s", state, len(e.held), e.pub.Next(), len(sink.content(slot)), dump(s))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func dump(s kvevents.Status) string {
	return strings.ReplaceAll(fmt.Sprintf("%+v", s), " ", "\n\t")
}
