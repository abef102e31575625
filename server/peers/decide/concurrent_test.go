package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/peers/decide"
)

// node is a router in real time; a pair of them is joined by queues, with messages in their wire form.
type node struct {
	id       decide.ID
	chooser  *chooser.Chooser
	book     *load.Book
	replicas []*replica.Replica
	frontend *decide.Frontend
	decider  *decide.Decider
	events   chan []byte // to this node's decider
	replies  chan []byte // to this node's frontend
	peer     *node
	bytes    int64 // of the events sent
	t        testing.TB
}

func newNode(t testing.TB, id decide.ID, ranks int) *node {
	n := &node{id: id, events: make(chan []byte, 1<<14), replies: make(chan []byte, 1<<14)}
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	n.book = load.New(load.DefaultConfig(), load.Params{})
	n.chooser = chooser.New(chooser.DefaultConfig(), chooser.Params{Index: index, Book: n.book, Seed: 1})
	for i := range ranks {
		slot := replica.Slot(i)
		r := &replica.Replica{ID: replica.ID(fmt.Sprintf("r%d", i)), State: replica.StateReady, Slots: []replica.Slot{slot}, Models: []replica.Model{{ID: "m"}}, BlockSize: block, Blocks: 40000}
		n.replicas = append(n.replicas, r)
		n.book.AddRank(slot)
		if err := index.AddRank(slot, kvindex.RankInfo{BlockSize: block, Capacity: r.Blocks}); err != nil {
			t.Fatal(err)
		}
		index.SetState(slot, kvblock.FeedExact)
		n.chooser.AddRank(slot, r, 0)
	}
	n.t = t
	params := decide.Params{Self: id, Chooser: n.chooser, Replicas: n, Fleet: n, Clock: atOnce{}}
	n.frontend, n.decider = decide.NewFrontend(decide.DefaultConfig(), params), decide.NewDecider(decide.DefaultConfig(), params)
	return n
}

func (n *node) Pool(model string) string                  { return model }
func (n *node) Serving(string, string) []*replica.Replica { return n.replicas }
func (n *node) RankOf(slot replica.Slot) (replica.Rank, bool) {
	return replica.Rank{Replica: n.replicas[slot].ID}, true
}
func (n *node) Broken() []replica.ID    { return nil }
func (n *node) Ability() peerv1.Ability { return peerv1.Ability_ABILITY_ABLE }

func (n *node) SendEvent(_ decide.ID, ev *peerv1.FrontendEvent) {
	msg, err := proto.Marshal(ev)
	if err != nil {
		n.t.Error(err)
	}
	n.bytes += int64(len(msg))
	n.peer.events <- msg
}

func (n *node) SendReply(_ decide.ID, reply *peerv1.DeciderReply) {
	msg, err := proto.Marshal(reply)
	if err != nil {
		n.t.Error(err)
	}
	n.peer.replies <- msg
}

// atOnce is a clock on which no time passes before a call.
type atOnce struct{}

func (atOnce) Now() time.Time                   { return time.Now() }
func (atOnce) After(_ time.Duration, do func()) { do() }

// event and reply handle the next message, if there is one.
func (n *node) event(t testing.TB, msg []byte) {
	ev := &peerv1.FrontendEvent{}
	if err := proto.Unmarshal(msg, ev); err != nil {
		t.Error(err)
	}
	n.decider.Event(n.peer.id, ev)
}

func (n *node) reply(t testing.TB, msg []byte) {
	reply := &peerv1.DeciderReply{}
	if err := proto.Unmarshal(msg, reply); err != nil {
		t.Error(err)
	}
	n.frontend.Reply(n.peer.id, reply)
}

func (n *node) drain(t testing.TB) {
	for {
		select {
		case msg := <-n.events:
			n.event(t, msg)
		case msg := <-n.replies:
			n.reply(t, msg)
		default:
			return
		}
	}
}

// pair returns a frontend and the router that decides for it.
func pair(t testing.TB, ranks int) (asker, decider *node) {
	a, b := newNode(t, "0000000a", ranks), newNode(t, "0000000b", ranks)
	a.peer, b.peer = b, a
	for _, n := range []*node{a, b} {
		n.decider.Up(n.peer.id)
		n.frontend.Up(n.peer.id, peerv1.Ability_ABILITY_ABLE)
	}
	if a.frontend.Decider("m") == a.id {
		return b, a
	}
	return a, b
}

func (n *node) request(id string, hashes []blockhash.Hash) *chooser.Request {
	return &chooser.Request{
		Request: decision.Request{ID: id, Model: "m"},
		Pool:    chooser.Pool{Replicas: n.replicas},
		Prompt:  chooser.Prompt{PromptTokens: len(hashes)*block + 1, Hashes: func(int) []blockhash.Hash { return hashes }},
		Reply:   chooser.Reply{ExpectedOutput: 100},
	}
}

// Callers that ask, report, leave and come again, while both routers serve, leave nothing behind.
func TestConcurrentCallersLeaveNothing(t *testing.T) {
	a, b := pair(t, 8)
	ctx, stop := context.WithCancel(context.Background())
	var serving, calling sync.WaitGroup
	for _, n := range []*node{a, b} {
		serving.Go(func() {
			for {
				select {
				case msg := <-n.events:
					n.event(t, msg)
				case <-ctx.Done():
					return
				}
			}
		})
		serving.Go(func() {
			for {
				select {
				case msg := <-n.replies:
					n.reply(t, msg)
				case <-ctx.Done():
					return
				}
			}
		})
		serving.Go(func() { n.frontend.Run(ctx) })
		serving.Go(func() { n.decider.Run(ctx) })
		serving.Go(func() { n.chooser.Run(ctx) })
	}
	for caller := range 16 {
		n := []*node{a, b}[caller%2]
		calling.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(caller), 1))
			for i := range 60 {
				cctx, cancel := context.WithTimeout(ctx, time.Duration(dice.IntN(40))*time.Millisecond)
				hashes := blockhash.Chain(nil, tokens(dice.IntN(20), 16+dice.IntN(3000)), block, blockhash.Namespace{})
				c, err := n.frontend.Choose(cctx, n.request(fmt.Sprintf("%d-%d", caller, i), hashes))
				var refused *chooser.Refused
				switch {
				case err == nil:
					c.FirstToken()
					c.Progress(1 + dice.IntN(50))
					c.Release(result(decision.EndCompleted))
				case !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &refused):
					t.Error(err)
				}
				cancel()
			}
		})
	}
	calling.Wait()
	left := func() bool {
		for _, n := range []*node{a, b} {
			if n.book.Live() != 0 || n.chooser.Waiting() != 0 || decide.Sizes(n.frontend, n.decider) != (decide.Held{}) {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(15 * time.Second); left() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, n := range []*node{a, b} {
		if left() {
			t.Errorf("%s is left with %d reservations, %d in the queue, %+v", n.id, n.book.Live(), n.chooser.Waiting(), decide.Sizes(n.frontend, n.decider))
		}
	}
	stop()
	serving.Wait()
}

// What a request costs frontend and decider together, without the connection: the choice, both bookings, all messages in their wire form.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct{ ranks, tokens int }{{8, 2000}, {64, 2000}, {64, 8000}} {
		b.Run(fmt.Sprintf("ranks=%d/tokens=%d", c.ranks, c.tokens), func(b *testing.B) {
			asker, decider := pair(b, c.ranks)
			asker.drain(b)
			decider.drain(b)
			asker.bytes = 0
			hashes := blockhash.Chain(nil, tokens(1, c.tokens), block, blockhash.Namespace{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				var choice *chooser.Choice
				asker.frontend.Submit(asker.request(fmt.Sprint(i), hashes), time.Time{}, func(c *chooser.Choice, err error) {
					if err != nil {
						b.Fatal(err)
					}
					choice = c
				})
				decider.drain(b)
				asker.drain(b)
				choice.FirstToken()
				choice.Release(result(decision.EndCompleted))
				decider.drain(b)
			}
			b.ReportMetric(float64(asker.bytes)/float64(b.N), "B-sent/op")
		})
	}
}

// The same choice by a router alone, to compare with.
func BenchmarkAlone(b *testing.B) {
	for _, ranks := range []int{8, 64} {
		b.Run(fmt.Sprintf("ranks=%d/tokens=2000", ranks), func(b *testing.B) {
			n := newNode(b, "0000000a", ranks)
			hashes := blockhash.Chain(nil, tokens(1, 2000), block, blockhash.Namespace{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c, err := n.chooser.Choose(context.Background(), n.request(fmt.Sprint(i), hashes))
				if err != nil {
					b.Fatal(err)
				}
				c.FirstToken()
				c.Release(result(decision.EndCompleted))
			}
		})
	}
}
