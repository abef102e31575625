package decide_test

import (
	"container/heap"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/peers/decide"
)

const block = 16

// world plays routers before shared replicas in virtual time, on one goroutine.
type world struct {
	scope   scope.Scope
	t       *testing.T
	now     time.Time
	events  timeline
	order   int
	dice    *rand.Rand
	delay   func() time.Duration
	loss    float64 // of messages
	cut     map[[2]decide.ID]bool
	routers []*router
	ids     int
	config  chooser.Config
	reading time.Duration // passes whenever a clock is read
	splits  bool          // the replicas have connectors, and requests are split
	older   decide.ID     // a router of an older version
	seen    func(*peerv1.DeciderReply)
}

type moment struct {
	at    time.Time
	order int
	do    func()
}

type timeline []moment

func (l timeline) Len() int { return len(l) }

func (l timeline) Less(i, j int) bool {
	if !l[i].at.Equal(l[j].at) {
		return l[i].at.Before(l[j].at)
	}
	return l[i].order < l[j].order
}

func (l timeline) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

func (l *timeline) Push(x any) { *l = append(*l, x.(moment)) }

func (l *timeline) Pop() any {
	old := *l
	m := old[len(old)-1]
	*l = old[:len(old)-1]
	return m
}

func (w *world) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, moment{w.now.Add(d), w.order, do})
}

// run plays until d has passed.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		m := heap.Pop(&w.events).(moment)
		w.now = m.at
		m.do()
	}
	w.now = end
}

// router is one router of the world.
type router struct {
	w        *world
	id       decide.ID
	chooser  *chooser.Chooser
	index    *kvindex.Index
	book     *load.Book
	replicas []*replica.Replica
	frontend *decide.Frontend
	decider  *decide.Decider
	ability  peerv1.Ability
	dead     bool
	stopped  bool
	backlog  []func() // what arrived while stopped
	// last is when the last message to a peer arrives: links keep the order.
	last map[decide.ID]time.Time
	// link counts the connections to a peer: messages of an earlier one are lost.
	link map[decide.ID]int

	live    map[*chooser.Choice]bool
	leads   map[*chooser.Choice]bool // choices of ranks that compute prompts for others
	waiting map[*decide.Waiting]bool
	alone   int
	errs    []error
}

// newTracedWorld is two routers whose deciders record their work.
func newTracedWorld(t *testing.T, tracers trace.TracerProvider) *world {
	w := bareWorld(t, 1)
	w.scope = scope.New(nil, nil, tracers)
	for range 2 {
		w.add(2)
	}
	w.connect()
	return w
}

func newWorld(t *testing.T, seed uint64, n, replicas int, change ...func(*chooser.Config)) *world {
	w := bareWorld(t, seed, change...)
	for range n {
		w.add(replicas)
	}
	w.connect()
	return w
}

func bareWorld(t *testing.T, seed uint64, change ...func(*chooser.Config)) *world {
	w := &world{t: t, now: time.Unix(1_000_000_000, 0), dice: rand.New(rand.NewPCG(seed, 1)), cut: map[[2]decide.ID]bool{}, config: chooser.DefaultConfig()}
	for _, f := range change {
		f(&w.config)
	}
	w.delay = func() time.Duration { return 500 * time.Microsecond }
	return w
}

func (w *world) add(replicas int) *router {
	r := &router{
		w: w, id: fmt.Sprintf("%08x", w.dice.Uint32()), last: map[decide.ID]time.Time{}, link: map[decide.ID]int{},
		live: map[*chooser.Choice]bool{}, leads: map[*chooser.Choice]bool{}, waiting: map[*decide.Waiting]bool{}, ability: peerv1.Ability_ABILITY_ABLE,
	}
	r.book = load.New(load.DefaultConfig(), load.Params{Scope: scope.Scope{}.At(r)})
	r.index = kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	r.chooser = chooser.New(w.config, chooser.Params{Index: r.index, Book: r.book, Seed: 1})
	for i := range replicas {
		// Every router numbers the ranks in an order of its own.
		slot := replica.Slot((i + len(w.routers)) % replicas)
		rep := &replica.Replica{ID: replica.ID(fmt.Sprintf("r%d", i)), State: replica.StateReady, Slots: []replica.Slot{slot}, Models: []replica.Model{{ID: "m"}}, BlockSize: block, Blocks: 40000}
		if w.splits {
			rep.Labels = map[string]string{replica.LabelConnector: "nixl"}
		}
		r.replicas = append(r.replicas, rep)
		r.book.AddRank(slot)
		if err := r.index.AddRank(slot, kvindex.RankInfo{BlockSize: block, Capacity: rep.Blocks}); err != nil {
			w.t.Fatal(err)
		}
		r.index.SetState(slot, kvblock.FeedExact)
		r.chooser.AddRank(slot, rep, 0)
	}
	params := decide.Params{Self: r.id, Chooser: r.chooser, Scope: w.scope, Replicas: r, Fleet: r, Clock: r}
	r.frontend, r.decider = decide.NewFrontend(decide.DefaultConfig(), params), decide.NewDecider(decide.DefaultConfig(), params)
	w.routers = append(w.routers, r)
	r.every(r.frontend.TickEvery(), r.frontend.Tick)
	r.every(r.decider.TickEvery(), r.decider.Tick)
	r.every(5*time.Millisecond, func() { r.chooser.Tick() })
	return r
}

func (r *router) Now() time.Time {
	r.w.now = r.w.now.Add(r.w.reading)
	return r.w.now
}

func (r *router) After(d time.Duration, do func()) { r.w.after(d, func() { r.do(do) }) }

func (r *router) Ability() peerv1.Ability { return r.ability }

func (r *router) Pool(model string) string { return model }

func (r *router) Serving(string, string) []*replica.Replica { return r.replicas }

func (r *router) Broken() []replica.ID { return nil }

func (r *router) RankOf(slot replica.Slot) (replica.Rank, bool) {
	for _, rep := range r.replicas {
		if rep.Slots[0] == slot {
			return replica.Rank{Replica: rep.ID}, true
		}
	}
	return replica.Rank{}, false
}

func (r *router) SendEvent(to decide.ID, ev *peerv1.FrontendEvent) {
	if to == r.w.older {
		ev = aged(ev)
	}
	r.send(to, func(peer *router) { peer.decider.Event(r.id, ev) })
}

func (r *router) SendReply(to decide.ID, reply *peerv1.DeciderReply) {
	if r.w.seen != nil {
		r.w.seen(reply)
	}
	r.send(to, func(peer *router) { peer.frontend.Reply(r.id, reply) })
}

func (r *router) every(d time.Duration, do func()) {
	r.w.after(d, func() {
		if r.dead {
			return
		}
		if !r.stopped {
			do()
		}
		r.every(d, do)
	})
}

// do runs f on the router now, or when it is continued.
func (r *router) do(f func()) {
	switch {
	case r.dead:
	case r.stopped:
		r.backlog = append(r.backlog, f)
	default:
		f()
	}
}

func (w *world) router(id decide.ID) *router {
	for _, r := range w.routers {
		if r.id == id {
			return r
		}
	}
	return nil
}

// send delivers a message to a peer after the others of the same link. Messages over a cut way wait until it heals, as TCP's do.
func (r *router) send(to decide.ID, deliver func(*router)) {
	w := r.w
	peer := w.router(to)
	if peer == nil || peer.dead || r.dead || w.dice.Float64() < w.loss {
		return
	}
	at := w.now.Add(w.delay())
	if last := r.last[to]; !at.After(last) {
		at = last.Add(time.Nanosecond)
	}
	r.last[to] = at
	link := r.link[to]
	var arrive func()
	arrive = func() {
		switch {
		case w.cut[[2]decide.ID{r.id, to}]:
			w.after(10*time.Millisecond, arrive)
		case r.link[to] == link:
			peer.do(func() { deliver(peer) })
		}
	}
	w.after(at.Sub(w.now), arrive)
}

// connect opens the links that are not open, both ways.
func (w *world) connect() {
	for _, a := range w.routers {
		for _, b := range w.routers {
			if a != b && !a.dead && !b.dead && a.link[b.id] == 0 {
				w.open(a, b)
			}
		}
	}
}

func (w *world) open(a, b *router) {
	a.link[b.id]++
	b.do(func() { b.decider.Up(a.id) })
	a.do(func() { a.frontend.Up(b.id, b.ability) })
}

// breakLink loses what is on the way between a's frontend and b's decider, and opens the link again.
func (w *world) breakLink(a, b *router) {
	if a.dead || b.dead {
		return
	}
	a.link[b.id] += 2
	b.link[a.id] += 2
	for _, pair := range [][2]*router{{a, b}, {b, a}} {
		one, two := pair[0], pair[1]
		two.do(func() { two.decider.Down(one.id) })
		one.do(func() { one.frontend.Down(two.id) })
		two.do(func() { two.decider.Up(one.id) })
		one.do(func() { one.frontend.Up(two.id, two.ability) })
	}
}

func (w *world) kill(r *router) {
	r.dead = true
	for _, other := range w.routers {
		if !other.dead {
			other.do(func() { other.frontend.Down(r.id); other.decider.Down(r.id) })
		}
	}
}

func tokens(number, n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(number*1_000_003 + i)
	}
	return list
}

// submit asks for a prompt of n tokens; the choice, if there is one, is in r.live.
func (r *router) submit(number, n int) *decide.Waiting {
	r.w.ids++
	chain := blockhash.Chain(nil, tokens(number, n), block, blockhash.Namespace{})
	req := &chooser.Request{
		Request: decision.Request{ID: fmt.Sprintf("%s%d", r.id, r.w.ids), Model: "m"},
		Pool:    chooser.Pool{Replicas: r.replicas},
		Prompt:  chooser.Prompt{PromptTokens: n, Hashes: func(int) []blockhash.Hash { return chain }},
		Reply:   chooser.Reply{ExpectedOutput: 100},
	}
	if r.w.splits {
		req.Splittable, req.Options.Weights = true, map[string]float64{"split_bonus": 1000}
	}
	return r.ask(req)
}

// ask asks for a choice; if there is one, it is in r.live.
func (r *router) ask(req *chooser.Request) *decide.Waiting {
	var wait *decide.Waiting
	done := false
	wait = r.frontend.Submit(req, time.Time{}, func(c *chooser.Choice, err error) {
		if done {
			r.w.t.Errorf("%s: delivered twice", req.ID)
		}
		done = true
		delete(r.waiting, wait)
		if err != nil {
			var refused *chooser.Refused
			if !errors.As(err, &refused) {
				r.w.t.Errorf("%s: %v", req.ID, err)
			}
			r.errs = append(r.errs, err)
			return
		}
		if c.Decision.Alone != "" {
			r.alone++
		}
		r.live[c] = true
		if lead := c.Prefill(); lead != nil {
			r.leads[lead] = true
		}
	})
	if !done {
		r.waiting[wait] = true
	}
	return wait
}

func result(end decision.End) chooser.Result {
	return chooser.ResultOf(end)
}

func (r *router) release(c *chooser.Choice) {
	delete(r.live, c)
	c.Release(result(decision.EndCompleted))
	if lead := c.Prefill(); lead != nil {
		r.read(lead)
	}
}

// read ends the booking of a rank that computed a prompt for another one.
func (r *router) read(lead *chooser.Choice) {
	delete(r.leads, lead)
	lead.Release(result(decision.EndCompleted))
}

// loads is what a router's book says of each replica.
func (r *router) loads() map[replica.ID]int {
	out := map[replica.ID]int{}
	for _, rep := range r.replicas {
		out[rep.ID] = r.book.View(rep.Slots[0], r.w.now).InFlight
	}
	return out
}

// atRest checks that all living routers agree on the decider and that it knows exactly what is in flight.
func (w *world) atRest(when string) {
	w.t.Helper()
	var decider *router
	want := map[replica.ID]int{}
	for _, r := range w.routers {
		if r.dead {
			continue
		}
		id := r.frontend.Decider("m")
		if decider == nil {
			decider = w.router(id)
		} else if decider.id != id {
			w.t.Errorf("%s: %s asks %s, others %s", when, r.id, id, decider.id)
		}
		for _, list := range []map[*chooser.Choice]bool{r.live, r.leads} {
			for c := range list {
				want[c.Replica.ID]++
			}
		}
	}
	got := decider.loads()
	for id, n := range got {
		if n != want[id] {
			w.t.Errorf("%s: the decider counts %d requests on %s, in flight are %d", when, n, id, want[id])
		}
	}
}

// prefill reports the first token of all choices.
func (w *world) prefill() {
	for _, r := range w.routers {
		for c := range r.live {
			c.FirstToken()
		}
	}
}

// endAll ends all requests and checks that nothing is left anywhere.
func (w *world) endAll() {
	w.t.Helper()
	for _, r := range w.routers {
		for wait := range r.waiting {
			wait.Leave()
			delete(r.waiting, wait)
		}
		for _, c := range slices.Collect(maps.Keys(r.live)) {
			r.release(c)
		}
	}
	w.run(10 * time.Second)
	for _, r := range w.routers {
		if r.dead {
			continue
		}
		for id, n := range r.loads() {
			if n != 0 {
				w.t.Errorf("at the end %s counts %d requests on %s", r.id, n, id)
			}
		}
		if n := r.book.Live(); n != 0 {
			w.t.Errorf("at the end %s has %d reservations", r.id, n)
		}
		if n := r.chooser.Waiting(); n != 0 {
			w.t.Errorf("at the end %d requests wait at %s", n, r.id)
		}
		if s := decide.Sizes(r.frontend, r.decider); s != (decide.Held{}) {
			w.t.Errorf("at the end %s holds %+v", r.id, s)
		}
	}
}

// atRestOf is atRest for some of the routers.
func (w *world) atRestOf(routers []*router, when string) {
	w.t.Helper()
	want := map[replica.ID]int{}
	for _, r := range routers {
		for c := range r.live {
			want[c.Replica.ID]++
		}
	}
	for id, n := range w.router(routers[0].frontend.Decider("m")).loads() {
		if n != want[id] {
			w.t.Errorf("%s: the decider counts %d requests on %s, in flight are %d", when, n, id, want[id])
		}
	}
}

func (w *world) busy() (n int) {
	for _, r := range w.routers {
		n += len(r.live)
	}
	return n
}

// operate does something at random.
func (w *world) operate() {
	r := w.routers[w.dice.IntN(len(w.routers))]
	if r.dead {
		return
	}
	switch n := w.dice.IntN(100); {
	case n < 40:
		r.do(func() { r.submit(w.dice.IntN(30), 16+w.dice.IntN(20_000)) })
	case n < 55:
		r.do(func() { r.some(func(c *chooser.Choice) { c.FirstToken() }) })
		r.do(func() {
			for lead := range r.leads {
				if lead.FirstToken(); w.dice.IntN(2) == 0 {
					r.read(lead)
				}
				break
			}
		})
	case n < 65:
		r.do(func() { r.some(func(c *chooser.Choice) { c.Progress(1 + w.dice.IntN(100)) }) })
	case n < 88:
		r.do(func() { r.some(r.release) })
	case n < 91:
		r.do(func() {
			for wait := range r.waiting {
				wait.Leave()
				delete(r.waiting, wait)
				break
			}
		})
	case n < 93:
		w.breakLink(r, w.routers[w.dice.IntN(len(w.routers))])
	case n < 94:
		if r.stopped {
			r.resume()
		} else {
			r.stopped = true
		}
	case n < 96:
		for _, other := range w.routers {
			if pair := [2]decide.ID{r.id, other.id}; w.dice.IntN(2) == 0 && other != r {
				w.cut[pair] = !w.cut[pair]
			}
		}
	case n < 98:
		r.ability = peerv1.Ability(1 + w.dice.IntN(3))
	case n < 99 && w.dice.IntN(8) == 0 && w.alive() > 2:
		w.kill(r)
	}
}

func (r *router) resume() {
	r.stopped = false
	list := r.backlog
	r.backlog = nil
	for _, f := range list {
		f()
	}
}

// some does f to one of the router's choices.
func (r *router) some(f func(*chooser.Choice)) {
	for c := range r.live {
		f(c)
		return
	}
}

func (w *world) alive() (n int) {
	for _, r := range w.routers {
		if !r.dead {
			n++
		}
	}
	return n
}

// heal ends all that is wrong but death.
func (w *world) heal() {
	w.loss = 0
	clear(w.cut)
	for _, r := range w.routers {
		r.ability = peerv1.Ability_ABILITY_ABLE
		if r.stopped && !r.dead {
			r.resume()
		}
	}
}
