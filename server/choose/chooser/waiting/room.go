package waiting

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Room has the requests that wait: for memory, then for room on a rank.
type Room struct {
	holding   *holding
	admission *admission
	lines     *lines
	queue     *holdqueue.Queue
	clock     *clock.Clock
	alarm     *alarm
	pools     Pools
	log       *slog.Logger
	Counts    Counts
}

// New returns an empty room. It is closed until open. pools may be nil: requests keep the replicas with which they came.
func New(queue *holdqueue.Queue, clock *clock.Clock, pools Pools, log *slog.Logger) *Room {
	return &Room{queue: queue, clock: clock, alarm: newAlarm(queue), pools: pools, log: log}
}

// Open lets requests in, which booker books. It is called once, before the first request.
func (r *Room) Open(booker *booking.Booker) {
	r.lines = newLines(r.queue, booker.Evaluator)
	r.holding = &holding{booker: booker, clock: r.clock, alarm: r.alarm, pools: r.pools, counts: &r.Counts}
	r.admission = &admission{
		holding: r.holding, booker: booker, clock: r.clock, settings: booker.Settings, sessions: booker.Memory.Sessions, alarm: r.alarm, log: r.log,
		counts: &r.Counts, unreachable: booker.Unreachable,
	}
}

// Begin decides about a request at once or puts it in line; then it returns the waiter. deliver gets the outcome of a request that waits; nil: its
// waiter's answer has it.
func (r *Room) Begin(req *ask.Request, deadline time.Time, deliver func(*booking.Choice, error)) (*booking.Choice, *Waiter, error) {
	if err := req.Check(); err != nil {
		return nil, nil, err
	}
	ln, now := r.lines.of(req.Model), r.clock.Now()
	var since time.Time
	if req.Age > 0 {
		since = now.Add(-req.Age)
	}
	booker := r.holding.booker
	s := booker.Borrow(since)
	defer booker.GiveBack(s)
	if err := booker.Evaluate(s, req, ln.Model, now, nil); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ask.ErrInvalid, err)
	}
	r.admission.arrive(s, req, ln, now)
	choice, w, err := r.place(s, req, ln, deadline, now, deliver)
	if err != nil {
		ln.Claims.Leave(&s.Program.Call)
	}
	return choice, w, err
}

// ModelOf has the memory of the requests for a model.
func (r *Room) ModelOf(name string) *evaluate.Model { return r.lines.of(name).Model }

// Models yields the memory of the requests for each model.
func (r *Room) Models() iter.Seq[*evaluate.Model] {
	return func(yield func(*evaluate.Model) bool) {
		for _, ln := range r.lines.all() {
			if !yield(ln.Model) {
				return
			}
		}
	}
}

// place decides about a request that was evaluated, or puts it in line.
func (r *Room) place(s *evaluate.Evaluation, req *ask.Request, ln *line, deadline, now time.Time, deliver func(*booking.Choice, error)) (*booking.Choice, *Waiter, error) {
	waits := !r.admission.admit(s, ln, now, false)
	s.AvoidFull()
	s.Choose()
	if err := r.holding.booker.Reach(&s.Decision, req); err != nil {
		return nil, nil, err
	}
	w := &Waiter{req: req, line: ln, deliver: deliver, counts: &r.Counts, call: s.Program.Call, full: slices.Clone(s.Program.Full)}
	if !waits && !r.holding.ahead(s, w, now) {
		if choice, err := r.holding.bookNow(s, req, ln, now, nil); !errors.Is(err, booking.ErrNoRoom) {
			return choice, nil, err
		}
	}
	if deliver == nil {
		w.Answer = make(chan answer, 1)
	}
	if waits {
		if err := r.admission.waitForMemory(s, w, deadline, now); err != nil {
			return nil, nil, err
		}
		return nil, w, nil
	}
	if err := r.holding.wait(s, w, deadline, req.Age, now); err != nil {
		return nil, nil, err
	}
	r.holding.offerRoom(ln)
	return nil, w, nil
}

// Update puts new settings of the queue in force.
func (r *Room) Update(cfg holdqueue.Config) { r.queue.Update(cfg) }

// Changed has the requests that wait visited again, if there are any.
func (r *Room) Changed() { r.alarm.Changed() }

// Freed implements follow.Waiting: the requests that wait for the rank at slot are looked at now, others soon.
func (r *Room) Freed(slot replica.Slot) {
	if r.queue.Len() == 0 {
		return
	}
	for _, ln := range r.lines.all() {
		r.admission.freed(ln)
		r.holding.freed(ln, slot)
	}
}

// Landed implements follow.Waiters: the rank at slot has a prefix that it did not have. It may pass it on before it is given requests.
func (r *Room) Landed(slot replica.Slot) {
	if r.queue.Len() == 0 {
		return
	}
	for _, ln := range r.lines.all() {
		if ln.hold.Len() > 0 {
			r.holding.passOn(ln, slot)
		}
	}
	r.Freed(slot)
}

// Waiting is the number of requests that wait.
func (r *Room) Waiting() int { return r.queue.Len() }

// WaitingFor is the number of requests for a model that wait.
func (r *Room) WaitingFor(model string) int {
	ln, ok := r.lines.byModel.Load(model)
	if !ok {
		return 0
	}
	return ln.(*line).hold.Len() + ln.(*line).memory.hold.Len()
}
