package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// Transfers are the times of moving KV cache between two engines, in seconds. Each engine has one link to the others: transfers on one link
// follow each other.
type Transfers struct {
	// Start passes before the first token moves, PerToken with each token that the reading engine lacks.
	Start, PerToken float64
}

// PublishedTransfers is a line through llm-d's published times of single requests (gpt-oss-120b, P2P tier: 2k tokens 35 ms, 8k 57, 16k 86,
// 32k 165, 48k 235). The cache of a token of the profile 70b is four times as large, and so are its engines' links: four GPUs have each.
func PublishedTransfers() Transfers { return Transfers{Start: 0.025, PerToken: 4.4e-6} }

// legs are the transfers of a run.
type legs struct {
	Transfers
	links  []link // of each engine
	splits int
	copies int
	moved  float64 // tokens, of splits and copies
	spent  float64 // seconds from a read's begin to its end
}

// link is when the last transfer from and to an engine ends.
type link struct{ out, in float64 }

// take returns when a transfer of so many tokens that begins now ends.
func (l *legs) take(now float64, from, to, tokens int) float64 {
	begin := max(now+l.Start, l.links[from].out, l.links[to].in)
	end := begin + l.PerToken*float64(tokens)
	l.links[from].out, l.links[to].in = end, end
	return end
}

// splits plays the two legs of split calls.
type splits struct{ *sim }

// lead is the leg of a split call that computes the prompt.
type lead struct {
	to     int // the engine that answers
	pinned []int32
	cached int
	done   func(*attempt)
}

// split has engine p compute a call's prompt and engine d answer it. done is called when the router has the first one's answer, with its attempt; the
// call goes to d then.
func (s splits) split(call, p, d int, done func(*attempt)) {
	c := &s.trace.Calls[call]
	a := &attempt{call: call, engine: p, sent: s.now, scheduled: math.NaN(), lead: &lead{to: d, done: done}}
	a.seq = enginemodel.Sequence{Owner: a, Keys: s.trace.hashes[call], Prompt: c.In, Most: 1}
	a.submit(s.sim)
}

// computed is the moment at which the engine has computed a prompt for another one: its blocks stay until that one has read them.
func (s splits) computed(a *attempt, at float64) {
	l, e := a.lead, s.engines[a.engine]
	a.started, a.prefilled = true, s.now
	e.prefills.ended(a, a.seq.Prompt)
	full := a.seq.Prompt / s.trace.block
	l.pinned, l.cached = e.machine.Pin(a.seq.Keys[:min(full, len(a.seq.Keys))]), a.seq.Cached()
	s.after(at, func() {
		l.done(a)
		c := &s.trace.Calls[a.call]
		b := &attempt{call: a.call, engine: l.to, sent: s.now, scheduled: math.NaN(), from: a}
		if b.prefix = a.prefix; b.prefix != nil {
			b.seq = enginemodel.Sequence{Owner: b, Keys: a.seq.Keys, Prompt: a.seq.Prompt, Most: 1, Remote: true}
		} else {
			b.seq = enginemodel.Sequence{Owner: b, Keys: s.trace.hashes[a.call], Prompt: c.In, Most: c.Out, Remote: true}
			s.legs.splits++
		}
		b.submit(s.sim)
	})
}

// reads begins the transfers that an engine's plan has begun.
func (s splits) reads(e *engine) {
	for _, q := range e.step.Reads {
		a := q.Owner.(*attempt)
		lacks := q.Prompt - q.Cached()
		end := s.legs.take(s.now, a.from.engine, a.engine, lacks)
		s.legs.moved += float64(lacks)
		s.legs.spent += end - s.now
		s.after(end-s.now, func() { s.delivered(a) })
	}
	e.step.Reads = e.step.Reads[:0]
}

// delivered is the moment at which an engine has read a prompt's cache: it can answer, and the one that computed it has its memory again.
func (s splits) delivered(a *attempt) {
	d, p := s.engines[a.engine], s.engines[a.from.engine]
	s.catchUp(d)
	d.machine.Arrive(&a.seq)
	s.publish(d)
	s.replan(d)
	s.catchUp(p)
	p.machine.Unpin(a.from.lead.pinned)
	if len(p.machine.Waiting()) > 0 {
		s.replan(p)
	}
}

// replan has an engine, which is caught up, look at its line at the end of the step that runs.
func (s splits) replan(e *engine) {
	switch {
	case e.steps == 0:
		e.plan(s.now)
	case e.steps > 1:
		e.cut()
	default:
		return
	}
	s.plan(e)
}
