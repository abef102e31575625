package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// prefix is a copy of the beginning of a call's prompt from one engine to another.
type prefix struct {
	blocks int
	read   func() // the source has answered
	ended  func() // the target has read it
}

// copy has engine from pass the first blocks of a call's prompt on to engine to. Both legs are requests of one token more than the blocks, which is all
// that they compute.
func (s splits) copy(call, from, to int, p *prefix) {
	a := &attempt{call: call, engine: from, sent: s.now, scheduled: math.NaN(), prefix: p, lead: &lead{to: to, done: func(*attempt) { p.read() }}}
	a.seq = enginemodel.Sequence{Owner: a, Keys: s.trace.hashes[call][:p.blocks], Prompt: p.blocks*s.trace.block + 1, Most: 1}
	a.submit(s.sim)
}

// copied is the moment at which a target has read a copy.
func (s splits) copied(a *attempt, at float64) {
	s.legs.copies++
	s.after(at, a.prefix.ended)
}
