package decide

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// Params are the parts that a Frontend and a Decider of one router work with.
type Params struct {
	// Self is this router.
	Self ID
	// Chooser is this router's own.
	Chooser  *chooser.Chooser
	Replicas Replicas
	Fleet    Fleet
	// Clock is the time; nil takes the system's.
	Clock Clock
	Scope scope.Scope
}

// Replicas is this router's view of the replicas.
type Replicas interface {
	// Pool names the pool that a model's requests go to. Models that share replicas are one pool, by the same name at every router.
	Pool(model string) string
	// Serving lists the replicas that serve a model, by the name that clients use or by the engines' name.
	Serving(model, served string) []*replica.Replica
	// RankOf names the rank of a slot.
	RankOf(slot replica.Slot) (replica.Rank, bool)
	// Broken lists the replicas that this router finds broken.
	Broken() []replica.ID
}

// Fleet is the way to the other routers, and this router's part among them.
type Fleet interface {
	// Ability is how fit this router is to decide now.
	Ability() peerv1.Ability
	// SendEvent passes a frontend's event to a peer's Decider.Event, SendReply a decider's reply to a peer's Frontend.Reply.
	SendEvent(to ID, ev *peerv1.FrontendEvent)
	SendReply(to ID, reply *peerv1.DeciderReply)
}

// Clock is the time.
type Clock interface {
	scope.Clock
	// After calls a function when a time has passed, without locks held.
	After(d time.Duration, do func())
}

// system is the system's clock.
type system struct{}

func (system) Now() time.Time                   { return time.Now() }
func (system) After(d time.Duration, do func()) { time.AfterFunc(d, do) }

func (p *Params) fill() {
	if p.Clock == nil {
		p.Clock = system{}
	}
}

// Frontend chooses for this router's requests, by asking the decider of each pool. Make one with NewFrontend.
type Frontend struct {
	cfg     Config
	params  Params
	metrics *metrics
	number  atomic.Uint64

	mu        sync.Mutex
	routers                       // guarded by mu
	questions                     // guarded by mu
	here      map[*Waiting]bool   // requests in this router's own hold queue; guarded by mu
	live      map[uint64]*booking // all requests in flight; guarded by mu
	copies    map[string]*running // copies under way that this router makes, by name; guarded by mu
}

// NewFrontend returns a Frontend without peers. cfg must be valid. It starts nothing.
func NewFrontend(cfg Config, params Params) *Frontend {
	params.fill()
	f := &Frontend{
		cfg: cfg, params: params, questions: questions{asks: map[uint64]*Waiting{}},
		routers: routers{self: params.Self, ability: params.Fleet.Ability(), peers: map[ID]*peer{}, placed: map[string]ID{}},
		here:    map[*Waiting]bool{}, live: map[uint64]*booking{}, copies: map[string]*running{},
	}
	f.metrics = newMetrics(params.Scope.Meters(), f)
	return f
}

// Choose is chooser.Chooser's, by whichever router decides for the request's pool.
func (f *Frontend) Choose(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	type answer struct {
		choice *chooser.Choice
		err    error
	}
	got := make(chan answer, 1)
	w := f.Submit(req, deadline, func(c *chooser.Choice, err error) { got <- answer{c, err} })
	select {
	case a := <-got:
		return a.choice, a.err
	case <-ctx.Done():
	}
	if w.leave() {
		return nil, ctx.Err()
	}
	if a := <-got; a.choice != nil {
		a.choice.Release(chooser.ResultOf(decision.EndCanceled))
	}
	return nil, ctx.Err()
}

// Waiting is a request that has no choice yet.
type Waiting struct {
	frontend *Frontend
	req      *chooser.Request
	sizes    []int // block sizes that the request has hashes for
	deadline time.Time
	deliver  func(*chooser.Choice, error)
	began    time.Time // when it first asked any router
	pool     string
	shared   bool // the policy needs one decider

	// Guarded by the frontend's mu.
	done   bool
	turn   int              // of asking: answers of earlier turns are void
	asked  time.Time        // the time of the present turn's question
	at     ID               // the router asked, this one for its own chooser
	number uint64           // of the question
	held   bool             // it is in the decider's queue
	local  *chooser.Waiting // its place in this router's own queue
	moves  int
}

// maxMoves is how often a question is sent to another router before the frontend decides alone.
const maxMoves = 4

// Submit is Choose without waiting: deliver is called once with the outcome, unless leave returned true. It must not block, and is
// called by any goroutine, possibly before Submit returns.
func (f *Frontend) Submit(req *chooser.Request, deadline time.Time, deliver func(*chooser.Choice, error)) *Waiting {
	w := &Waiting{
		frontend: f, deadline: deadline, deliver: deliver, began: f.params.Clock.Now().Add(-req.Age), pool: f.params.Replicas.Pool(req.Model),
		shared: req.Booking != chooser.DryRun && f.params.Chooser.PolicyOf(req).ReadsLoad(),
	}
	w.req, w.sizes = f.clone(req, w.shared)
	w.route(0, "")
	return w
}

// clone copies req, with its hashes for the block sizes of its pool: a caller that leaves may reuse its memory while a peer's answer
// is read. A request that is decided here alone is not copied.
func (f *Frontend) clone(req *chooser.Request, shared bool) (*chooser.Request, []int) {
	if !shared {
		return req, nil
	}
	own := *req
	if req.Hashes == nil {
		return &own, nil
	}
	sizes := f.params.Chooser.BlockSizes(req.Replicas)
	lists := make([][]blockhash.Hash, len(sizes))
	for i, size := range sizes {
		lists[i] = req.Hashes(size)
	}
	own.Hashes = func(size int) []blockhash.Hash {
		if i := slices.Index(sizes, size); i >= 0 {
			return lists[i]
		}
		return nil
	}
	return &own, sizes
}

// leave withdraws the request. It returns false when the outcome is, or is being, delivered.
func (w *Waiting) leave() bool {
	f := w.frontend
	f.mu.Lock()
	if w.done {
		f.mu.Unlock()
		return false
	}
	w.done = true
	local := w.withdraw()
	f.mu.Unlock()
	if local != nil {
		local.Leave()
	}
	return true
}

// withdraw voids the present turn. It returns the place in the own queue that the caller must leave once mu is released.
func (w *Waiting) withdraw() *chooser.Waiting {
	f := w.frontend
	w.turn++
	if w.number != 0 {
		delete(f.asks, w.number)
		f.sendDrop(w.at, w.number)
	}
	delete(f.here, w)
	local := w.local
	w.local, w.number, w.held = nil, 0, false
	return local
}

// route asks the decider of the request's pool, unless the turn has passed. alone, when not empty, is why this router decides instead.
func (w *Waiting) route(turn int, alone string) {
	f := w.frontend
	number := f.number.Add(2) - 1 // the next one is of a rank that computes the prompt for another one
	var ask *peerv1.Ask
	for {
		f.mu.Lock()
		if w.done || w.turn != turn {
			f.mu.Unlock()
			return
		}
		to := f.params.Self
		if w.shared && alone == "" {
			to = f.decider(w.pool)
		}
		if to == f.params.Self {
			w.at, w.number = to, 0
			f.here[w] = true
			f.mu.Unlock()
			w.decide(turn, number, alone)
			return
		}
		if ask != nil {
			w.ask(to, number, ask)
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		ask = w.question(turn, number) // without the lock: it copies the hashes
	}
}

// age is how long the request has waited for other routers at its turn of asking. The first turn asks at once: the time until the
// question is made is no wait, and a request that finds room then was not held.
func (w *Waiting) age(turn int, now time.Time) time.Duration {
	if turn == 0 {
		return w.req.Age
	}
	return max(0, now.Sub(w.began))
}

// question makes the question for a request.
func (w *Waiting) question(turn int, number uint64) *peerv1.Ask {
	f := w.frontend
	now := f.params.Clock.Now()
	ask := askOf(w.req, w.sizes, f.params.Replicas.RankOf)
	ask.ExpectedOutput = uint32(max(0, f.params.Chooser.ExpectedOutput(w.req)))
	ask.Number, ask.Age = number, span(w.age(turn, now))
	if w.req.Splittable {
		ask.PrefillNumber = number + 1
	}
	ask.Avoid = append(ask.Avoid, texts(f.params.Replicas.Broken())...)
	if !w.deadline.IsZero() {
		ask.Deadline = span(max(time.Nanosecond, w.deadline.Sub(now)))
	}
	return ask
}

// ask sends a question; mu is held.
func (w *Waiting) ask(to ID, number uint64, ask *peerv1.Ask) {
	f := w.frontend
	w.at, w.number, w.held, w.asked = to, number, false, f.params.Clock.Now()
	f.asks[number] = w
	f.fresh = append(f.fresh, unanswered{number, w.asked})
	f.params.Fleet.SendEvent(to, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Ask{Ask: ask}})
}

// decide asks this router's own chooser.
func (w *Waiting) decide(turn int, number uint64, alone string) {
	f := w.frontend
	b := newBooking(f, w, number)
	req := *w.req
	req.Age, req.Observer, req.Alone, req.Again = w.age(turn, f.params.Clock.Now()), b, alone, true
	var lead *booking
	if req.Splittable {
		lead = b.lead(w)
		req.PrefillObserver = lead
	}
	req.Copier = w.follow(req.Copier)
	if alone != "" {
		f.metrics.Alone.Add(alone)
	}
	local := f.params.Chooser.Submit(&req, w.deadline, func(c *chooser.Choice, err error) { w.decided(turn, b, lead, c, err) })
	if local == nil {
		return
	}
	f.mu.Lock()
	if !w.done && w.turn == turn {
		w.local, local = local, nil
	}
	f.mu.Unlock()
	if local != nil {
		local.Leave()
	}
}

// decided takes the own chooser's outcome.
func (w *Waiting) decided(turn int, b, lead *booking, c *chooser.Choice, err error) {
	f := w.frontend
	f.mu.Lock()
	if w.done || w.turn != turn {
		f.mu.Unlock()
		if c != nil {
			c.Release(void())
		}
		return
	}
	w.done = true
	delete(f.here, w)
	if c != nil && c.Booked() {
		b.enter(c, w.req.Hashes)
		if p := c.Prefill(); p != nil {
			lead.enter(p, w.req.Hashes)
		}
	}
	late := f.lag(c)
	f.mu.Unlock()
	if late > 0 {
		f.params.Clock.After(late, func() { w.deliver(c, err) })
		return
	}
	w.deliver(c, err)
}

// void is the result of a booking that is not used.
func void() chooser.Result { return chooser.ResultOf(decision.EndHandedOver) }

// Requests counts this router's requests in flight.
func (f *Frontend) Requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// Decider returns the router that decides for a model now.
func (f *Frontend) Decider(model string) ID {
	pool := f.params.Replicas.Pool(model)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decider(pool)
}
