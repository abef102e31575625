package breaker

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Breaker records the results of requests by replica, and keeps requests away from replicas that fail.
// It is safe for concurrent use. The caller MUST report every request that Allow allowed, once, with
// the Pass that Allow returned.
type Breaker struct {
	cfg atomic.Pointer[Config]

	metrics  metrics
	mu       sync.Mutex
	circuits map[replica.ID]*circuit // guarded by mu
	faults   map[replica.ID]int64    // guarded by mu: attempts that count against a replica
	turns    uint64                  // guarded by mu: how often a circuit has opened or closed
	// openUntil is from when on all circuits are closed or on trial, if nothing more happens: in nanoseconds of Unix time. It is
	// written with mu held.
	openUntil atomic.Int64
}

// Pass ties a request's outcome to the circuit's state when it was asked for: a request that began before the circuit opened or closed
// says nothing about the replica as it is now. The zero Pass says nothing at all.
type Pass struct {
	turn  uint64 // of the circuit
	trial uint64 // which of that turn's trials; 0 when it is none
	at    time.Time
}

// State says whether requests may go to a replica.
type State uint8

// The states.
const (
	// Closed: all requests.
	Closed State = iota
	// Trial: one trial request at a time.
	Trial
	// Open: none.
	Open
)

// String gives the state in the form that metrics and JSON use.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Trial:
		return "trial"
	case Open:
		return "open"
	}
	return "unknown"
}

// circuit is one replica's record.
type circuit struct {
	record    record
	open      bool          // or on trial, once until has passed
	firm      bool          // it opened because the replica cannot be reached
	until     time.Time     // no request before this
	openFor   time.Duration // the last time it was open
	trial     time.Time     // when the running trial began; zero when none is running
	trials    uint64        // begun in this turn, the running one included
	successes int           // of trials
	turn      uint64        // 0 until it first opens
}

// trialLease is how long an unreported trial blocks the next one.
const trialLease = time.Minute

// New makes a breaker with all circuits closed.
func New(cfg Config) *Breaker {
	b := &Breaker{circuits: map[replica.ID]*circuit{}, faults: map[replica.ID]int64{}}
	b.cfg.Store(&cfg)
	return b
}

// Update applies new bounds. Circuits that are open stay so for as long as they were to.
func (b *Breaker) Update(cfg Config) { b.cfg.Store(&cfg) }

// State says whether requests may go to the replica, without taking a trial.
func (b *Breaker) State(id replica.ID) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.circuits[id]
	if c == nil {
		return Closed
	}
	return c.state(time.Now())
}

// mayBeOpen notes that a circuit may be open until then; mu is held.
func (b *Breaker) mayBeOpen(until time.Time) {
	b.openUntil.Store(max(b.openUntil.Load(), until.UnixNano()))
}

// Shut reports whether the circuit of any replica may be open.
func (b *Breaker) Shut() bool {
	until := b.openUntil.Load()
	return until != 0 && time.Now().UnixNano() <= until
}

// Opened lists the replicas whose circuit is open, in no order. It costs nothing while none can be.
func (b *Breaker) Opened() (ids []replica.ID) {
	if !b.Shut() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for id, c := range b.circuits {
		if c.state(now) == Open {
			ids = append(ids, id)
		}
	}
	return ids
}

// circuit finds or makes the circuit of a replica; mu is held.
func (b *Breaker) circuit(id replica.ID) *circuit {
	c := b.circuits[id]
	if c == nil {
		c = &circuit{}
		b.circuits[id] = c
	}
	return c
}

func (c *circuit) state(now time.Time) State {
	switch {
	case now.Before(c.until):
		return Open
	case !c.open:
		return Closed
	case !c.trial.IsZero() && now.Sub(c.trial) < trialLease:
		return Open
	}
	return Trial
}

// Allow asks to send one request to the replica; on a half-open circuit it takes the trial. The Pass is valid when the
// answer is no, too: a caller without another replica MAY send the request anyway.
func (b *Breaker) Allow(id replica.ID) (Pass, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	c := b.circuits[id]
	if c == nil {
		return Pass{at: now}, true
	}
	pass := Pass{turn: c.turn, at: now}
	switch c.state(now) {
	case Closed:
		return pass, true
	case Trial:
		c.trial = now
		b.mayBeOpen(now.Add(trialLease))
		c.trials++
		pass.trial = c.trials
		return pass, true
	case Open:
	}
	return pass, false
}

// Report records the end of a request for which Allow was called, and why it ended so.
func (b *Breaker) Report(id replica.ID, pass Pass, f retry.Finding) {
	cfg := b.cfg.Load()
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.Against() {
		b.faults[id]++
	}
	if cfg.Failures == 0 {
		return
	}
	c := b.circuit(id)
	if pass.turn != c.turn {
		return // from before the circuit opened or closed
	}
	now := time.Now()
	switch {
	case c.open:
		b.reportTrial(c, pass, f, now)
	case c.record.add(f, pass.at, cfg, now):
		b.trip(c, f, now, cfg.OpenFor)
	}
}

// reportTrial takes note of a trial's result. One that took longer than the lease counts as well, but it ends only
// itself. Requests that were sent although the answer was no are none of the circuit's. A failure that may be the
// request's own does not make the next pause longer.
func (b *Breaker) reportTrial(c *circuit, pass Pass, f retry.Finding, now time.Time) {
	if pass.trial == 0 {
		return
	}
	if pass.trial == c.trials {
		c.trial = time.Time{}
	}
	switch {
	case f.Against() && (f.Sure || f.Verdict.Silent()): // another silent trial keeps a caller waiting
		b.trip(c, f, now, min(2*c.openFor, b.cfg.Load().MaxOpenFor))
	case f.Against():
		b.trip(c, f, now, c.openFor)
	case f.Verdict == retry.OK:
		if c.successes++; c.successes >= b.cfg.Load().Trials {
			*c = circuit{until: c.until, turn: b.turn()}
		}
	}
}

func (b *Breaker) trip(c *circuit, f retry.Finding, now time.Time, openFor time.Duration) {
	*c = circuit{open: true, firm: f.Verdict == retry.Unreachable, openFor: openFor, until: now.Add(openFor), turn: b.turn()}
	b.mayBeOpen(c.until)
	b.metrics.Opened.Add(f.Cause)
}

// turn numbers a change of any circuit's state.
func (b *Breaker) turn() uint64 {
	b.turns++
	return b.turns
}

// Pause rejects requests to the replica for a time, as its Retry-After asks.
func (b *Breaker) Pause(id replica.ID, d time.Duration) {
	if d <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.circuit(id)
	if until := time.Now().Add(min(d, b.cfg.Load().MaxOpenFor)); until.After(c.until) {
		c.until = until
		b.mayBeOpen(until)
	}
}

// Retain drops the circuits of replicas for which known is false.
func (b *Breaker) Retain(known func(replica.ID) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.circuits, func(id replica.ID, _ *circuit) bool { return !known(id) })
	maps.DeleteFunc(b.faults, func(id replica.ID, _ int64) bool { return !known(id) })
}
