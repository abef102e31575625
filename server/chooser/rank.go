package chooser

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/replica"
)

// busyMemory is the time constant of the load estimate ρ.
const busyMemory = 60 * time.Second

// rank is what the chooser itself remembers of one slot: how fast it is and how much prefill was
// sent to it lately. Readers take no lock.
type rank struct {
	slot    replica.Slot
	replica replica.ID
	index   int

	tokenTime, bend, stepScale, work number
	samples                          atomic.Int64
	lately                           lately
	giving                           giving
	vigil                            vigil

	mu    sync.Mutex
	pace  pace         // guarded by mu
	first atomic.Int64 // when its last first token was seen, in the nanoseconds of time.Time.UnixNano; written under mu
}

// number is a float64 that may be read and replaced at once.
type number struct{ bits atomic.Uint64 }

func (n *number) get() float64  { return math.Float64frombits(n.bits.Load()) }
func (n *number) set(v float64) { n.bits.Store(math.Float64bits(v)) }

func newRank(slot replica.Slot, id replica.ID, index int) *rank {
	r := &rank{slot: slot, replica: id, index: index, pace: newPace()}
	r.tokenTime.set(priorTokenTime)
	r.bend.set(priorBend)
	r.stepScale.set(1)
	return r
}

// lately is what was routed to a rank, per second and fading with busyMemory.
type lately struct {
	busy    number       // seconds of prefill
	returns number       // requests that came back to what the rank holds
	saved   number       // seconds of prefill that those were spared
	squares number       // half the squared seconds of prefill: the mean time left of it
	at      atomic.Int64 // when it was brought up to date, in nanoseconds of the chooser's clock
}

// leastSaved is the prefill time in seconds from which a request counts as having come back.
const leastSaved = 0.01

// route counts a request sent to the rank at now: its predicted prefill, and what the cache spares it.
func (r *rank) route(seconds, saved float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.lately
	keep := l.fade(now)
	count := func(n *number, v float64) { n.set(keep*n.get() + v/busyMemory.Seconds()) }
	count(&l.busy, seconds)
	count(&l.squares, seconds*seconds/2)
	count(&l.saved, saved)
	returned := 0.0
	if saved > leastSaved {
		returned = 1
	}
	count(&l.returns, returned)
	l.at.Store(now)
	if w := r.work.get(); w == 0 {
		r.work.set(seconds)
	} else {
		r.work.set(w + (seconds-w)/16)
	}
}

// unroute takes back what was counted and will be counted again: the rest of a prompt that gave way.
func (r *rank) unroute(seconds float64, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.lately
	keep := l.fade(now)
	uncount := func(n *number, v float64) { n.set(max(0, keep*n.get()-v/busyMemory.Seconds())) }
	uncount(&l.busy, seconds)
	uncount(&l.squares, seconds*seconds/2)
	uncount(&l.saved, 0)
	uncount(&l.returns, 0)
	l.at.Store(now)
}

// servedSince is when the engine came to a request booked at booked: then, or when the one before it
// had its first token.
func (r *rank) servedSince(booked time.Time) time.Time {
	if first := r.first.Load(); first > booked.UnixNano() {
		return time.Unix(0, first)
	}
	return booked
}

// load is the share of the rank's time that the prefill routed to it lately takes.
func (r *rank) load(now int64) float64 {
	return r.lately.busy.get() * r.lately.fade(now)
}

// fade is what is left at now of what was counted.
func (l *lately) fade(now int64) float64 {
	if l.busy.get() == 0 {
		return 1
	}
	return math.Exp(-float64(now-l.at.Load()) / float64(busyMemory))
}

// firstToken learns from a first token seen at now: a request of n uncached tokens after context
// cached ones, booked at booked. alone says that it was the only one waiting when it was booked
// or that those before it are done, slowdown how much decodes were expected to slow it.
func (r *rank) firstToken(now, booked time.Time, context, n, slowdown float64, teach bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := r.servedSince(booked)
	r.first.Store(now.UnixNano())
	if !teach {
		return
	}
	r.pace.learn(context, n, now.Sub(began).Seconds()/(1+slowdown))
	r.tokenTime.set(r.pace.a)
	r.bend.set(r.pace.bend())
	r.samples.Store(int64(r.pace.samples))
}

// step predicts the time of a decode step of so many sequences that read context tokens.
func (r *rank) step(sequences, context int) float64 {
	return r.stepScale.get() * plainStep(sequences, context)
}

// plainStep is the time of a decode step before anything was learned.
func plainStep(sequences, context int) float64 {
	return priorStepTime + priorSequenceTime*float64(sequences) + priorReadTime*float64(context)
}

// decoded learns from a finished stream whose steps took seconds each.
func (r *rank) decoded(seconds float64, sequences, context int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	scale, ratio := r.stepScale.get(), seconds/plainStep(sequences, context)
	r.stepScale.set(min(max(scale+0.1*(min(ratio, outlier*scale)-scale), 1.0/paceBound), paceBound))
}
