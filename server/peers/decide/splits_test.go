package decide_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// newSplitWorld is n routers before replicas with NIXL, whose speed all of them know.
func newSplitWorld(t *testing.T, n, replicas int) *world {
	w := bareWorld(t, 7)
	w.splits = true
	for range n {
		r := w.add(replicas)
		models := map[replica.Rank]speed.Model{}
		for _, rep := range r.replicas {
			models[replica.Rank{Replica: rep.ID}] = speed.Model{Token: 1. / 8000, Bend: 50000, Overhead: 0.003, Base: 0.01, Load: 1, Samples: 20, Spread: 0.1}
		}
		r.chooser.Learned().ImportModels(models)
	}
	w.connect()
	return w
}

// asker is a router that decides nothing, and decider the router that it asks.
func (w *world) asker() (asker, decider *router) {
	decider = w.router(w.routers[0].frontend.Decider("m"))
	for _, r := range w.routers {
		if r != decider && !r.dead {
			return r, decider
		}
	}
	return nil, decider
}

// one is a router's only choice.
func (r *router) one() *chooser.Choice {
	r.w.t.Helper()
	for c := range r.live {
		if len(r.live) == 1 {
			return c
		}
	}
	r.w.t.Fatalf("%s has %d choices, want 1", r.id, len(r.live))
	return nil
}

// prefilling counts the prompts that a router's book has in prefill on each replica.
func (r *router) prefilling() map[replica.ID]int {
	out := map[replica.ID]int{}
	for _, rep := range r.replicas {
		if n := r.book.View(rep.Slots[0], r.w.now).Prefilling; n > 0 {
			out[rep.ID] = n
		}
	}
	return out
}

func TestRequestsOfPeersAreSplit(t *testing.T) {
	for _, routers := range []int{2, 3} {
		t.Run(fmt.Sprint(routers), func(t *testing.T) {
			w := newSplitWorld(t, routers, 2)
			r, decider := w.asker()
			r.submit(1, 8000)
			w.run(10 * time.Millisecond)
			c := r.one()
			split, lead := c.Decision.Split(), c.Prefill()
			if split == nil || lead == nil || c.Decision.DecidedBy != decider.id || lead.Replica.ID == c.Replica.ID || split.Prefill.Replica != lead.Replica.ID || split.Decode.Slot != c.Slot {
				t.Fatalf("not split by the decider: %+v, ways %+v", c.Decision.Deciders, c.Decision.Ways)
			}
			if c.Decision.PredictedTTFT() < 0.9 || c.PredictedMove() <= 0 || c.PredictedMove() > time.Second || lead.Decision.Pick().Uncached != 8000 {
				t.Errorf("predicted %v s, the move %v, uncached %d", c.Decision.PredictedTTFT(), c.PredictedMove(), lead.Decision.Pick().Uncached)
			}
			for _, one := range []*router{r, decider} {
				if got := one.prefilling(); len(got) != 1 || got[lead.Replica.ID] != 1 {
					t.Errorf("%s has prompts in prefill on %v, want one on %s", one.id, got, lead.Replica.ID)
				}
			}
			w.atRest("both ranks are booked")
			w.run(time.Second)
			lead.FirstToken()
			c.Sent()
			w.run(10 * time.Millisecond)
			if got := decider.prefilling(); len(got) != 0 {
				t.Errorf("after the first leg the decider has prompts in prefill on %v", got)
			}
			w.atRest("the blocks wait to be read")
			w.run(2 * time.Second)
			c.FirstToken()
			r.read(lead)
			w.run(10 * time.Millisecond)
			w.atRest("after the first token")
			r.release(c)
			r.submit(2, 8000)
			w.run(10 * time.Millisecond)
			if move := r.one().PredictedMove(); move < time.Second || move > 3*time.Second {
				t.Errorf("after a transfer of 2 s the decider predicts %v", move)
			}
			w.endAll()
		})
	}
}

// A client that leaves at any point of a split request leaves nothing booked anywhere.
func TestSplitOfAPeerLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(*world, *router, *chooser.Choice)
	}{
		{"before the first leg", func(*world, *router, *chooser.Choice) {}},
		{"between the legs", func(_ *world, _ *router, c *chooser.Choice) { c.Prefill().FirstToken() }},
		{"before the first token", func(_ *world, _ *router, c *chooser.Choice) { c.Prefill().FirstToken(); c.Sent() }},
		{"at its end", func(_ *world, r *router, c *chooser.Choice) {
			c.Prefill().FirstToken()
			c.Sent()
			c.FirstToken()
			r.read(c.Prefill())
		}},
		{"after the first leg failed", func(_ *world, r *router, c *chooser.Choice) { r.read(c.Prefill()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newSplitWorld(t, 3, 3)
			r, _ := w.asker()
			r.submit(1, 8000)
			w.run(10 * time.Millisecond)
			tt.then(w, r, r.one())
			w.run(10 * time.Millisecond)
			w.atRest("under way")
			w.endAll()
		})
	}
}

// A request that leaves while its choice is on the way to it is booked nowhere, on neither rank.
func TestSplitThatCrossesItsClientIsVoid(t *testing.T) {
	w := newSplitWorld(t, 2, 2)
	r, _ := w.asker()
	wait := r.submit(1, 8000)
	w.run(600 * time.Microsecond) // the decider has answered
	if !wait.Leave() {
		t.Fatal("it was delivered")
	}
	delete(r.waiting, wait)
	w.run(20 * time.Millisecond)
	w.atRest("after the client has left")
	w.endAll()
}

// The router that decides next knows both bookings of a split request, and that its prompt is computed elsewhere.
func TestSplitMovesToTheNextDecider(t *testing.T) {
	for _, between := range []bool{false, true} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			w := newSplitWorld(t, 3, 4)
			_, decider := w.asker()
			all := map[*router]*chooser.Choice{}
			want, computes := map[replica.ID]int{}, map[replica.ID]bool{}
			for i, r := range w.routers {
				if r == decider {
					continue
				}
				r.submit(i, 8000)
				w.run(10 * time.Millisecond)
				all[r] = r.one()
				computes[r.one().Prefill().Replica.ID] = true
				if between {
					all[r].Prefill().FirstToken()
				} else {
					want[r.one().Prefill().Replica.ID]++
				}
			}
			w.run(10 * time.Millisecond)
			w.kill(decider)
			w.run(100 * time.Millisecond)
			w.atRest("after the decider's death")
			for r, c := range all {
				next := w.router(r.frontend.Decider("m"))
				if got := next.prefilling(); !maps.Equal(got, want) {
					t.Errorf("the next decider has prompts in prefill on %v, want %v", got, want)
				}
				if view := next.book.View(next.slot(c.Replica.ID), w.now); !computes[c.Replica.ID] && (view.PrefillTokens != 0 || view.PrefillTime != 0 || view.Overdue != 0) {
					t.Errorf("%s, which answers, has %+v", c.Replica.ID, view)
				}
			}
			for _, c := range all {
				c.Prefill().FirstToken()
				c.Sent()
				c.FirstToken()
			}
			w.run(10 * time.Millisecond)
			for r, c := range all {
				if got := w.router(r.frontend.Decider("m")).prefilling(); len(got) != 0 {
					t.Errorf("after the first tokens the next decider has prompts in prefill on %v", got)
				}
				r.read(c.Prefill())
			}
			w.run(10 * time.Millisecond)
			w.atRest("after the first legs")
			w.endAll()
		})
	}
}

// slot is a replica's at the router.
func (r *router) slot(id replica.ID) replica.Slot {
	return r.replicas[slices.IndexFunc(r.replicas, func(rep *replica.Replica) bool { return rep.ID == id })].Slots[0]
}

// aged removes from a message the fields that an older version does not have.
func aged(ev *peerv1.FrontendEvent) *peerv1.FrontendEvent {
	if ask := ev.GetAsk(); ask != nil {
		ask.PrefillNumber, ask.Copies = 0, false
	}
	return ev
}

// A decider of an older version serves requests whole, and orders no copies.
func TestOlderDeciderServesWhole(t *testing.T) {
	w := newSplitWorld(t, 2, 2)
	r, decider := w.asker()
	w.older = decider.id
	f := &branches{world: w, from: []*router{r}}
	r.submit(1, 8000)
	w.run(10 * time.Millisecond)
	if c := r.one(); c.Decision.Split() != nil || c.Prefill() != nil || c.Decision.DecidedBy != decider.id {
		t.Errorf("%+v by %q", c.Decision.Ways, c.Decision.DecidedBy)
	}
	f.holds(0, decider)
	f.start(12)
	w.run(3 * time.Second)
	if len(f.copies) != 0 {
		t.Errorf("%d copies began", len(f.copies))
	}
	w.endAll()
}

// branches are requests that begin with one prompt, at several routers.
type branches struct {
	*world
	nth    int // the prefix' number
	from   []*router
	copies []*chooser.Prefix // begun
	by     []*router         // whose requests' copiers made them
	// then is done to a copy that has begun; nil: it works.
	then func(*chooser.Prefix)
}

const (
	forkPrefix = 32_000
	forkOwn    = 800
)

// holds has the events of a rank show the prefix at the routers.
func (f *branches) holds(i int, at ...*router) {
	names := make([]kvblock.EngineHash, forkPrefix/block)
	for n := range names {
		names[n] = kvblock.EngineHash(f.nth*1_000_000 + n + 1)
	}
	for _, r := range at {
		if !r.dead {
			r.index.Store(r.replicas[i].Slots[0], &kvblock.Stored{Hashes: names, Tokens: tokens(f.tokens(), forkPrefix), BlockSize: block})
		}
	}
}

// copier makes the copies of a router's requests.
type copier struct {
	*branches
	r *router
}

// Copy implements chooser.Copier.
func (c copier) Copy(p *chooser.Prefix) {
	c.copies, c.by = append(c.copies, p), append(c.by, c.r)
	if c.then != nil {
		c.then(p)
		return
	}
	c.works(p)
}

// works is a copy that takes 0.2 s.
func (f *branches) works(p *chooser.Prefix) {
	f.after(20*time.Millisecond, p.Sent)
	f.after(200*time.Millisecond, func() {
		for i, rep := range f.routers[0].replicas {
			if rep.ID == p.To.Replica.ID {
				f.holds(i, f.routers...)
			}
		}
		p.Ended(chooser.Copied)
	})
}

// start asks for n branches, at the routers in turn, and keeps their first tokens coming: an engine has one after 0.17 s for each.
func (f *branches) start(n int) {
	for i := range n {
		r := f.from[i%len(f.from)]
		ids := append(tokens(f.tokens(), forkPrefix), tokens(100+i, forkOwn)...)
		f.ask(r, ids)
		f.run(2 * time.Millisecond)
	}
}

// ask asks a router for an answer to a prompt.
func (f *branches) ask(r *router, ids []uint32) {
	f.ids++
	chain := blockhash.Chain(nil, ids, block, blockhash.Namespace{})
	r.ask(&chooser.Request{
		Request: decision.Request{ID: fmt.Sprintf("%s%d", r.id, f.ids), Model: "m"},
		Pool:    chooser.Pool{Replicas: r.replicas},
		Prompt:  chooser.Prompt{PromptTokens: len(ids), Hashes: func(int) []blockhash.Hash { return chain }},
		Reply:   chooser.Reply{ExpectedOutput: 100},
		Terms:   chooser.Terms{Copier: copier{f, r}},
	})
}

// tokens is the number of the prefix' tokens.
func (f *branches) tokens() int { return 1 + 5000*f.nth }

// root plays a call with the prefix and one token more at a router, which is answered for two seconds.
func (f *branches) root(r *router) {
	f.nth++
	f.ask(r, append(tokens(f.tokens(), forkPrefix), 7))
	f.run(4 * time.Second)
	c := r.one()
	for i, rep := range r.replicas {
		if rep.ID == c.Replica.ID {
			f.holds(i, f.routers...)
		}
	}
	c.FirstToken()
	f.run(2 * time.Second)
	r.release(c)
	f.run(50 * time.Millisecond)
}

// serve plays the engines until all branches have ended: each computes one prompt after the other, 0.17 s for each that finds the prefix. It returns how many each
// replica has served.
func (f *branches) serve() map[replica.ID]int {
	f.t.Helper()
	served := map[replica.ID]int{}
	begun := map[*chooser.Choice]bool{}
	for range 400 {
		next := map[replica.ID]*chooser.Choice{}
		left := 0
		for _, r := range f.routers {
			if r.dead {
				continue
			}
			left += len(r.waiting) + len(r.live)
			for c := range r.live {
				if o := next[c.Replica.ID]; !begun[c] && (o == nil || c.Decision.At.Before(o.Decision.At)) {
					next[c.Replica.ID] = c
				}
			}
		}
		if left == 0 {
			return served
		}
		f.run(170 * time.Millisecond)
		for id, c := range next {
			begun[c] = true
			served[id]++
			c.FirstToken()
			r := f.ownerOf(c)
			f.after(time.Second, func() { r.release(c) })
		}
	}
	f.t.Error("the branches do not end")
	return served
}

func (f *branches) ownerOf(c *chooser.Choice) *router {
	for _, r := range f.routers {
		if r.live[c] {
			return r
		}
	}
	return nil
}

func TestPeersMakeTheDecidersCopies(t *testing.T) {
	for _, routers := range []int{2, 3} {
		t.Run(fmt.Sprint(routers), func(t *testing.T) {
			w := newSplitWorld(t, routers, 4)
			asker, decider := w.asker()
			f := &branches{world: w}
			for _, r := range w.routers {
				if r != decider {
					f.from = append(f.from, r)
				}
			}
			f.holds(0, w.routers...)
			f.start(40)
			served := f.serve()
			to := map[replica.ID]int{}
			for i, p := range f.copies {
				to[p.To.Replica.ID]++
				if p.Tokens != forkPrefix || p.From.Replica == nil || p.From.Slot == p.To.Slot || p.Predicted <= 0 || p.Predicted > time.Second || f.by[i] == decider {
					t.Errorf("the copy %+v at %s", p, f.by[i].id)
				}
			}
			if len(f.copies) != 3 || len(to) != 3 {
				t.Errorf("%d copies to %v, want one to each of three", len(f.copies), to)
			}
			for id, n := range served {
				if n < 5 {
					t.Errorf("%s served %d of 40: %v", id, n, served)
				}
			}
			if asker.alone != 0 {
				t.Errorf("%d were decided alone", asker.alone)
			}
			w.endAll()
		})
	}
}

// The router that has a call makes copies of its prompt while it is answered, where the decider expects a fork.
func TestPeersMakeTheDecidersCopiesAheadOfForks(t *testing.T) {
	for _, forked := range []bool{true, false} {
		t.Run(fmt.Sprint(forked), func(t *testing.T) {
			w := newSplitWorld(t, 3, 4)
			asker, decider := w.asker()
			f := &branches{world: w, from: w.routers}
			for range 4 {
				f.root(asker)
				if forked {
					f.start(15)
					f.serve()
				}
				f.run(30 * time.Second)
			}
			f.copies, f.by = nil, nil
			f.root(asker)
			want := 0
			if forked {
				want = 3
			}
			if len(f.copies) != want {
				t.Errorf("%d copies before the fork, want %d", len(f.copies), want)
			}
			for i, p := range f.copies {
				if f.by[i] != asker || asker == decider || p.Tokens != forkPrefix {
					t.Errorf("the copy %+v at %s", p, f.by[i].id)
				}
			}
			w.endAll()
		})
	}
}

// The record at the router that asked names the copy for which a request has waited.
func TestWaitForACopyIsInTheRecordOfTheRouterThatAsked(t *testing.T) {
	w := newSplitWorld(t, 2, 3)
	r, _ := w.asker()
	f := &branches{world: w, from: []*router{r}}
	f.holds(0, w.routers...)
	f.start(20)
	named := 0
	for range 20 {
		w.run(50 * time.Millisecond)
		for c := range r.live {
			if way := c.Decision.Copied(); way != nil {
				named++
				if way.Prefill.Replica == "" || way.Decode.Replica == "" || way.Held != forkPrefix || way.Began.IsZero() || way.Began.After(w.now) || w.now.Sub(way.Began) > 3*time.Second {
					t.Errorf("the record has %+v", *way)
				}
			}
			if c.FirstToken(); len(r.live) > 4 {
				r.release(c)
			}
		}
	}
	if named == 0 {
		t.Error("no record names a copy")
	}
	w.endAll()
}

// The next decider counts a copy under way: it begins no other one to that rank, and requests wait for it.
func TestCopyMovesToTheNextDecider(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered by the maker %v", local), func(t *testing.T) {
			w := newSplitWorld(t, 3, 2)
			r, decider := w.asker()
			f := &branches{world: w, from: []*router{r}}
			if local {
				f.from = []*router{decider}
			}
			var end func()
			f.then = func(p *chooser.Prefix) {
				f.after(20*time.Millisecond, p.Sent)
				end = func() { f.works(p) }
			}
			f.holds(0, w.routers...)
			f.start(16)
			w.run(50 * time.Millisecond)
			if len(f.copies) != 1 {
				t.Fatalf("%d copies began, want 1", len(f.copies))
			}
			if local { // another one becomes the decider, and this one lives
				decider.ability = peerv1.Ability_ABILITY_LEAVING
			} else {
				w.kill(decider)
			}
			w.run(200 * time.Millisecond)
			next := w.router(r.frontend.Decider("m"))
			if next == decider || next.chooser.Waiting() == 0 {
				t.Fatalf("%d requests wait at the next decider, of %d", next.chooser.Waiting(), len(r.waiting))
			}
			if n := next.book.View(next.replicas[1].Slots[0], w.now).InFlight; n == 0 {
				t.Error("the next decider has not booked the target of the copy")
			}
			end()
			served := f.serve()
			if len(f.copies) != 1 || served["r1"] < 4 {
				t.Errorf("%d copies in all, want 1; served by %v", len(f.copies), served)
			}
			w.endAll()
		})
	}
}

// A router that dies with its copies leaves nothing: others may copy to the rank.
func TestCopyEndsWithItsRouter(t *testing.T) {
	w := newSplitWorld(t, 3, 2)
	r, decider := w.asker()
	var other *router
	for _, o := range w.routers {
		if o != r && o != decider {
			other = o
		}
	}
	f := &branches{world: w, from: []*router{r}}
	f.then = func(*chooser.Prefix) {}
	f.holds(0, w.routers...)
	f.start(8)
	w.run(50 * time.Millisecond)
	if len(f.copies) != 1 {
		t.Fatalf("%d copies began, want 1", len(f.copies))
	}
	w.kill(r)
	w.run(5 * time.Second)
	f.then, f.from = nil, []*router{other}
	f.start(16)
	f.serve()
	if len(f.copies) != 2 || f.by[1] != other {
		t.Errorf("%d copies, want another one", len(f.copies))
	}
	w.endAll()
}

// However a peer's copy ends, or if it never does, no request waits for good, and nothing stays booked.
func TestCopyOfAPeerThatFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(*branches, *chooser.Prefix)
		most int
	}{
		{"at once", func(_ *branches, p *chooser.Prefix) { p.Ended(chooser.CopyGivenUp) }, 3},
		{"at the source", func(f *branches, p *chooser.Prefix) {
			f.after(30*time.Millisecond, func() { p.Ended(chooser.SourceFailed) })
		}, 3},
		{"at the target", func(f *branches, p *chooser.Prefix) {
			p.Sent()
			f.after(30*time.Millisecond, func() { p.Ended(chooser.TargetFailed); p.Ended(chooser.Copied) })
		}, 3},
		{"never", func(*branches, *chooser.Prefix) {}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newSplitWorld(t, 2, 4)
			r, _ := w.asker()
			f := &branches{world: w, from: []*router{r}}
			f.then = func(p *chooser.Prefix) { tt.then(f, p) }
			f.holds(0, w.routers...)
			f.start(20)
			f.serve()
			if n := len(f.copies); n == 0 || n > tt.most {
				t.Errorf("%d copies began", n)
			}
			w.run(time.Minute)
			for _, p := range f.copies {
				p.Ended(chooser.CopyGivenUp)
			}
			w.endAll()
		})
	}
}

// An order that crosses the end of its question is void, and costs the target no rest.
func TestOrderForAQuestionThatLeftIsVoid(t *testing.T) {
	w := newSplitWorld(t, 2, 2)
	r, _ := w.asker()
	f := &branches{world: w, from: []*router{r}}
	crossed := 0
	w.seen = func(reply *peerv1.DeciderReply) {
		if reply.GetCopy() == nil || crossed > 0 {
			return
		}
		crossed++
		w.after(100*time.Microsecond, func() {
			for wait := range r.waiting {
				wait.Leave()
				delete(r.waiting, wait)
			}
		})
	}
	f.holds(0, w.routers...)
	f.start(16)
	f.serve()
	if crossed != 1 {
		t.Fatal("no copy was ordered")
	}
	f.start(16)
	f.serve()
	if len(f.copies) != 1 {
		t.Errorf("%d copies, want 1", len(f.copies))
	}
	w.endAll()
}
