package decide

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
)

// Decider answers the questions of peers by this router's own chooser. Make one with NewDecider.
type Decider struct {
	cfg     Config
	params  Params
	metrics *deciderMetrics
	tracer  trace.Tracer
	orders  atomic.Uint64 // of copies, so far

	mu      sync.Mutex
	clients map[ID]*client // guarded by mu
	ability peerv1.Ability // as it was announced last; guarded by mu
}

// client is a peer's frontend. The Decider's mu guards it.
type client struct {
	id     ID
	up     bool
	heard  time.Time
	asks   map[uint64]*question
	booked map[uint64]*booked
	// numbers has the number of each reservation among both. A frontend's numbers grow: of two for one reservation the lower is void.
	numbers map[string]uint64
	// begun and sum describe the bookings that the frontend knows of: how many, and the sum of their mixed numbers.
	begun uint32
	sum   uint64
	// listed are the bookings of a list that has come in part, nil between lists.
	listed map[uint64]bool
	// copies are the copies that the frontend makes, by name.
	copies map[string]ordered
	// resynced is when all bookings were asked for last.
	resynced time.Time
}

// question waits for its choice.
type question struct {
	id      string // of the reservation
	prefill uint64 // number of the booking of a rank that computes the prompt for another one
	waiting *chooser.Waiting
	done    bool // it was decided
	dropped bool // its frontend does not want it any more
	span    work
}

// booked is a peer's request in flight.
type booked struct {
	id     string
	choice *chooser.Choice // nil for one that could not be booked here
	begun  bool
	since  time.Time
}

// NewDecider returns a Decider without clients. cfg must be valid. It starts nothing.
func NewDecider(cfg Config, params Params) *Decider {
	params.fill()
	d := &Decider{cfg: cfg, params: params, clients: map[ID]*client{}, ability: params.Fleet.Ability(), tracer: params.Scope.Tracer("server/peers/decide")}
	d.metrics = newDeciderMetrics(params.Scope.Meters(), d)
	return d
}

// Up notes that a peer's frontend is connected: its events arrive, in order, beginning with a list of its bookings. Its earlier bookings
// remain until then.
func (d *Decider) Up(id ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.clients[id]
	if c == nil {
		c = &client{id: id, asks: map[uint64]*question{}, booked: map[uint64]*booked{}, numbers: map[string]uint64{}, copies: map[string]ordered{}}
		d.clients[id] = c
	}
	c.up, c.heard, c.listed = true, d.params.Clock.Now(), nil
}

// Down notes that the connection broke. Its questions leave the queue at once, its bookings remain for Config.Grace.
func (d *Decider) Down(id ID) {
	d.mu.Lock()
	c := d.clients[id]
	if c == nil {
		d.mu.Unlock()
		return
	}
	c.up, c.heard = false, d.params.Clock.Now()
	leaving, copies := c.leave(), c.forgetCopies()
	d.mu.Unlock()
	for _, w := range leaving {
		w.Leave()
	}
	for _, one := range copies {
		one.Ended(chooser.CopyVoid)
	}
}

// leave drops all questions and returns the waiting ones of the queue; the Decider's mu is held.
func (c *client) leave() (waiting []*chooser.Waiting) {
	for n, q := range c.asks {
		q.dropped = true
		q.span.dropped()
		if q.waiting != nil {
			waiting = append(waiting, q.waiting)
		}
		delete(c.asks, n)
		c.unname(q.id, n)
	}
	return waiting
}

// Event handles an event of a peer's Frontend.
func (d *Decider) Event(from ID, ev *peerv1.FrontendEvent) {
	d.mu.Lock()
	c := d.clients[from]
	if c == nil {
		d.mu.Unlock()
		return
	}
	c.heard = d.params.Clock.Now()
	d.mu.Unlock()
	switch e := ev.GetEvent().(type) {
	case *peerv1.FrontendEvent_Ask:
		d.ask(c, e.Ask)
	case *peerv1.FrontendEvent_Drop:
		d.drop(c, e.Drop)
	case *peerv1.FrontendEvent_Begin:
		d.begin(c, e.Begin)
	case *peerv1.FrontendEvent_FirstToken:
		if choice := d.choice(c, e.FirstToken); choice != nil {
			choice.FirstToken()
		}
	case *peerv1.FrontendEvent_Progress:
		if choice := d.choice(c, e.Progress.GetNumber()); choice != nil {
			choice.Progress(tokensOf(e.Progress.GetOutputTokens()))
		}
	case *peerv1.FrontendEvent_End:
		d.end(c, e.End.GetNumber(), resultOf(e.End))
	case *peerv1.FrontendEvent_Bookings:
		d.bookings(c, e.Bookings)
	case *peerv1.FrontendEvent_Ping:
		d.ping(c, e.Ping)
	case *peerv1.FrontendEvent_Sent:
		if choice := d.choice(c, e.Sent); choice != nil {
			choice.Sent()
		}
	case *peerv1.FrontendEvent_Copy:
		d.copied(c, e.Copy)
	}
}

// ask decides a question, now or when the hold queue releases it.
func (d *Decider) ask(c *client, ask *peerv1.Ask) {
	number := ask.GetNumber()
	if !isShort(ask.GetId(), ask.GetRequestId(), ask.GetTraceId(), ask.GetSpanId(), ask.GetModel(), ask.GetServed(), ask.GetAdapter(), ask.GetTenant(), ask.GetSession(), ask.GetSplit(), ask.GetSide(), ask.GetInsteadOf()) {
		return
	}
	q := &question{id: ask.GetId(), span: d.trace(ask, c.id)}
	d.mu.Lock()
	older, ok := uint64(0), false
	if len(c.asks) < maxOfPeer && len(c.booked) < maxOfPeer {
		older, ok = c.name(q.id, number)
	}
	if ok {
		c.asks[number] = q
	}
	d.mu.Unlock()
	if !ok {
		q.span.dropped()
		return
	}
	d.drop(c, older)
	q.prefill = ask.GetPrefillNumber()
	req := requestOf(ask, c.id, d.params.Replicas.Serving(ask.GetModel(), ask.GetServed()))
	if ask.GetCopies() {
		req.Copier = &orders{decider: d, to: c, number: number}
	}
	var deadline time.Time
	if ask.GetDeadline() != nil {
		deadline = d.params.Clock.Now().Add(ask.GetDeadline().AsDuration())
	}
	w := d.params.Chooser.Submit(req, deadline, func(choice *chooser.Choice, err error) { d.decided(c, number, q, choice, err) })
	if w == nil {
		return
	}
	d.mu.Lock()
	dropped := q.dropped
	if !dropped && !q.done {
		q.waiting = w
		d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Held{Held: number}})
	}
	d.mu.Unlock()
	if dropped {
		w.Leave()
	}
}

// decided answers a question.
func (d *Decider) decided(c *client, number uint64, q *question, choice *chooser.Choice, err error) {
	d.mu.Lock()
	q.done = true
	if q.dropped {
		d.mu.Unlock()
		q.span.dropped()
		if choice != nil {
			choice.Release(void())
		}
		return
	}
	defer q.span.done(choice, err)
	delete(c.asks, number)
	if err != nil || !choice.Booked() {
		c.unname(q.id, number)
	}
	if err != nil {
		d.metrics.Answers.Add(outcomeRefused)
		d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Refused{Refused: refusalOf(number, err)}})
		d.mu.Unlock()
		return
	}
	if choice.Booked() {
		now := d.params.Clock.Now()
		c.booked[number] = &booked{id: q.id, choice: choice, since: now}
		if lead := choice.Prefill(); lead != nil {
			c.booked[q.prefill] = &booked{id: q.id + prefillSuffix, choice: lead, since: now}
			c.numbers[q.id+prefillSuffix] = q.prefill
		}
	}
	d.metrics.Answers.Add(outcomeChosen)
	chosen := chosenOf(number, choice, d.params.Clock.Now())
	if chosen.Prefill != nil {
		chosen.Prefill.Number = q.prefill
	}
	d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Chosen{Chosen: chosen}})
	d.mu.Unlock()
}

// name notes the number of a reservation's question or booking, and returns the number that it replaces, 0 for none. It returns false
// when the number is known or void; the Decider's mu is held.
func (c *client) name(id string, number uint64) (older uint64, ok bool) {
	if older = c.numbers[id]; older >= number {
		return 0, false
	}
	c.numbers[id] = number
	return older, true
}

func (c *client) unname(id string, number uint64) {
	if c.numbers[id] == number {
		delete(c.numbers, id)
	}
}

// reply sends to a client that is connected; mu is held.
func (d *Decider) reply(c *client, r *peerv1.DeciderReply) {
	if c.up {
		d.params.Fleet.SendReply(c.id, r)
	}
}

// drop voids a question or a booking.
func (d *Decider) drop(c *client, number uint64) {
	d.mu.Lock()
	q := c.asks[number]
	if q == nil {
		d.mu.Unlock()
		d.end(c, number, void())
		return
	}
	q.dropped = true
	delete(c.asks, number)
	c.unname(q.id, number)
	w := q.waiting
	d.mu.Unlock()
	q.span.dropped()
	if w != nil {
		w.Leave()
	}
}

// begin notes that the frontend uses a choice.
func (d *Decider) begin(c *client, number uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := c.booked[number]; b != nil {
		c.count(number, b)
	}
}

// count counts a booking as one that the frontend knows of.
func (c *client) count(number uint64, b *booked) {
	if !b.begun {
		b.begun = true
		c.begun++
		c.sum ^= mix(number)
	}
}

// remove takes a booking off the books; the Decider's mu is held. Its choice, which may be nil, is to be released without it.
func (c *client) remove(number uint64) *chooser.Choice {
	b := c.booked[number]
	if b == nil {
		return nil
	}
	delete(c.booked, number)
	c.unname(b.id, number)
	if b.begun {
		c.begun--
		c.sum ^= mix(number)
	}
	return b.choice
}

func (d *Decider) choice(c *client, number uint64) *chooser.Choice {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := c.booked[number]; b != nil {
		return b.choice
	}
	return nil
}

// end releases a booking.
func (d *Decider) end(c *client, number uint64, r chooser.Result) {
	d.mu.Lock()
	choice := c.remove(number)
	d.mu.Unlock()
	if choice != nil {
		choice.Release(r)
	}
}

// resyncEvery is how often a frontend is asked for all its bookings at most.
const resyncEvery = time.Second

// ping answers a ping, and asks for all bookings when the frontend's differ from those here.
func (d *Decider) ping(c *client, in *peerv1.Ping) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Pong{Pong: &peerv1.Pong{Number: in.GetNumber(), Ability: d.params.Fleet.Ability()}}})
	now := d.params.Clock.Now()
	if (c.begun != in.GetBookings() || c.sum != in.GetSum()) && now.Sub(c.resynced) >= resyncEvery {
		c.resynced = now
		d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Resync{Resync: true}})
	}
}

// Tick releases the bookings of frontends that stayed away, and informs the others that this router's ability has changed.
func (d *Decider) Tick() {
	now := d.params.Clock.Now()
	var released []*chooser.Choice
	var leaving []*chooser.Waiting
	var copies []chooser.CopyReports
	d.mu.Lock()
	for id, c := range d.clients {
		away := now.Sub(c.heard) > d.cfg.Grace
		copies = append(copies, c.lateCopies(now, away)...)
		if away {
			leaving = append(leaving, c.leave()...)
		}
		for n, b := range c.booked {
			if away || !b.begun && now.Sub(b.since) > d.cfg.Grace {
				if choice := c.remove(n); choice != nil {
					released = append(released, choice)
				}
			}
		}
		if away && !c.up {
			delete(d.clients, id)
		}
	}
	if a := d.params.Fleet.Ability(); a != d.ability {
		d.ability = a
		for _, c := range d.clients {
			d.reply(c, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Pong{Pong: &peerv1.Pong{Ability: a}}})
		}
	}
	d.mu.Unlock()
	for _, w := range leaving {
		w.Leave()
	}
	for _, choice := range released {
		choice.Release(void())
	}
	for _, one := range copies {
		one.Ended(chooser.CopyGivenUp)
	}
}

// tickEvery is how often Tick is to be called.
func (d *Decider) tickEvery() time.Duration {
	return max(time.Millisecond, min(d.cfg.Grace/10, 100*time.Millisecond))
}

// Run calls Tick until ctx ends.
func (d *Decider) Run(ctx context.Context) error { return runTicks(ctx, d.tickEvery(), d.Tick) }

// runTicks calls tick at each interval until ctx ends.
func runTicks(ctx context.Context, every time.Duration, tick func()) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			tick()
		}
	}
}
