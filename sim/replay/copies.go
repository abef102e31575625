package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// prefix is a copy of the beginning of a call's prompt from one engine to another.
type prefix struct {
	router *router
	chooser.Prefix
}

// prompts copies the beginnings of a call's prompt.
type prompts struct {
	router *router
	call   int
}

// Copy implements chooser.Copier.
func (c prompts) Copy(p *chooser.Prefix) {
	splits{c.router.sim}.copy(c.call, &prefix{router: c.router, Prefix: *p})
}

// copy has one engine pass the first blocks of a call's prompt on to another one. Both legs are requests of one token more than the blocks, which is all
// that they compute.
func (s splits) copy(call int, p *prefix) {
	a := &attempt{call: call, engine: int(p.From.Slot), sent: s.now, scheduled: math.NaN(), prefix: p, lead: &lead{to: int(p.To.Slot), done: func(*attempt) { p.Sent() }}}
	a.seq = enginemodel.Sequence{Owner: a, Keys: s.trace.hashes[call][:p.Tokens/s.trace.block], Prompt: p.Tokens + 1, Most: 1}
	a.submit(s.sim)
}

// copied is the moment at which a target has read a copy.
func (s splits) copied(a *attempt, at float64) {
	s.legs.copies++
	s.after(at, func() {
		a.prefix.Ended(chooser.Copied)
		a.prefix.router.plan()
	})
}
