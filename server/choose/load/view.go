package load

import (
	"runtime"
	"sync/atomic"
	"time"
)

// published is the copy of a rank's sums that readers see whole: seq is odd while a writer, which
// holds the rank's mu, changes it. Readers of thousands of ranks find them near each other, and touch nothing else of a rank: it fills
// two cache lines.
type published struct {
	rank                  *rank        // whose sums they are; never changes
	output                atomic.Int64 // output tokens of all bookings; seq does not count its changes
	seq                   atomic.Uint64
	version               atomic.Uint64
	inFlight, prefilling  atomic.Int64
	assumed               atomic.Int64
	tokens, nanos, prompt atomic.Int64
	blocks, used          atomic.Int64 // blocks are weighted, in units of whole
	headTokens, headNanos atomic.Int64
	anchor                atomic.Int64
	headUnstreamed        atomic.Bool
}

// publish makes the sums visible. rk.mu is held.
func (rk *rank) publish() {
	p, s := rk.pub, &rk.sums
	p.seq.Add(1)
	p.version.Store(rk.version.Load())
	p.inFlight.Store(s.inFlight)
	p.prefilling.Store(s.prefilling)
	p.assumed.Store(s.assumed)
	p.tokens.Store(s.tokens)
	p.nanos.Store(s.nanos)
	p.prompt.Store(s.prompt)
	p.blocks.Store(s.own + whole*rk.tree.shared)
	p.used.Store(s.used + rk.tree.shared)
	head := rk.queue.first
	if head == nil {
		head = &noBooking
	}
	p.headTokens.Store(head.prefill.tokens)
	p.headNanos.Store(head.prefill.nanos)
	p.headUnstreamed.Store(head.prefill.unstreamed)
	p.anchor.Store(rk.anchor)
	p.seq.Add(1)
}

// noBooking stands for the head of an empty queue; it never changes.
var noBooking booking

// view sets load to the load as it stands at now.
func (p *published) view(now int64, load *RankLoad) {
	for {
		seq := p.seq.Load()
		if seq&1 != 0 {
			runtime.Gosched()
			continue
		}
		output := int(p.output.Load())
		*load = RankLoad{} // set in place: a literal with these fields would be built elsewhere and copied
		load.Version, load.InFlight, load.Prefilling, load.Assumed = p.version.Load(), int(p.inFlight.Load()), int(p.prefilling.Load()), int(p.assumed.Load())
		load.OutputTokens, load.ContextTokens, load.DecodeBlocks = output, int(p.prompt.Load())+output, float64(p.blocks.Load())/whole
		load.UsedBlocks = p.used.Load()
		tokens, nanos, anchor := p.tokens.Load(), p.nanos.Load(), p.anchor.Load()
		headTokens, headNanos, unstreamed := p.headTokens.Load(), p.headNanos.Load(), p.headUnstreamed.Load()
		if p.seq.Load() != seq {
			continue
		}
		if load.Prefilling == 0 {
			return
		}
		served := max(0, now-anchor)
		if unstreamed && now >= anchor+headNanos {
			p.rank.settle(now)
			continue
		}
		load.drain(tokens, nanos, headTokens, headNanos, served)
		return
	}
}

// drain fills in the prefill work, less the part that the first in line got done in the time it was served.
func (l *RankLoad) drain(tokens, nanos, headTokens, headNanos, served int64) {
	done := 0.0
	if headNanos > 0 {
		done = float64(min(served, headNanos)) / float64(headNanos)
	}
	l.PrefillTokens = float64(tokens) - done*float64(headTokens)
	l.PrefillTime = time.Duration(nanos - min(served, headNanos))
	l.Overdue = time.Duration(max(0, served-headNanos))
}
