package replay

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// longRun bounds the decode steps that are planned at once; a run ends with a sequence anyway.
const longRun = 1 << 30

// attempt is a call on an engine.
type attempt struct {
	call, engine int
	seq          enginemodel.Sequence
	// started says that the engine has made its first token, begun that the router has it.
	started, begun bool
	firstAt        float64 // when the router gets it
	sent           float64 // when the router sent the call
	// scheduled is when the engine began it, NaN before, and prefilled when it made its first token.
	scheduled, prefilled float64
	// lead is set for one that computes a prompt for another engine, and from, the attempt that has done so, for one that reads it.
	lead *lead
	from *attempt
	// prefix is set for the two legs of a copy of a prompt's beginning.
	prefix *prefix
	// reported is the number of tokens that the router knows of.
	reported int
}

// engine drives the step machine of one replica in virtual time.
type engine struct {
	slot    int
	machine *enginemodel.Machine
	// speed is that of the replica over its profile's.
	speed float64
	step  *enginemodel.Step
	// The planned steps began at started; the first steps of them end at until. No steps: idle.
	started, until float64
	steps          int
	gen            uint32
	busy           float64 // seconds in steps with prefill
	computed       float64 // prompt tokens
	events         []kvEvent
	lie            Lie
	prefills       prefills
	loaded         float64 // when its last load from tiers below the GPU ends
}

// kvEvent is a change of an engine's cache: blocks stored, or one removed.
type kvEvent struct {
	stored   *attempt // nil: removed
	from, to int
	removed  blockhash.Hash
	tier     kvblock.Tier
}

func newEngines(p *Profile, h Hardware, n, block int, lies ...Lie) []*engine {
	list := make([]*engine, n)
	for i := range list {
		var lie Lie
		if i < len(lies) {
			lie = lies[i]
		}
		list[i] = newEngine(i, h.profile(p, i), nth(h.Speeds, i), block, nil, lie)
	}
	return list
}

// newPooled returns engines that share one cache of the same total size and have room for all adapters.
func newPooled(p *Profile, h Hardware, n, block int) []*engine {
	pool, plain := enginemodel.NewPool(h.cacheTokens(p, n)/block), *p
	plain.Adapters = enginemodel.Adapters{}
	list := make([]*engine, n)
	for i := range list {
		list[i] = newEngine(i, h.profile(&plain, i), nth(h.Speeds, i), block, pool, Lie{})
	}
	return list
}

func newEngine(slot int, p *Profile, speed float64, block int, pool *enginemodel.Pool, lie Lie) *engine {
	e := &engine{slot: slot, speed: speed, until: math.Inf(1), lie: lie}
	cfg := p.model(block)
	lie.change(&cfg)
	e.machine = enginemodel.New(cfg, pool, e)
	return e
}

// Stored implements enginemodel.Sink.
func (e *engine) Stored(s *enginemodel.Sequence, from, to int) {
	e.events = append(e.events, kvEvent{stored: s.Owner.(*attempt), from: from, to: to})
}

// Removed implements enginemodel.Sink.
func (e *engine) Removed(key blockhash.Hash) { e.events = append(e.events, kvEvent{removed: key}) }

// Kept implements enginemodel.LowerSink.
func (e *engine) Kept(tier kvblock.Tier, s *enginemodel.Sequence, from, to int) {
	e.events = append(e.events, kvEvent{stored: s.Owner.(*attempt), from: from, to: to, tier: tier})
}

// Dropped implements enginemodel.LowerSink.
func (e *engine) Dropped(tier kvblock.Tier, key blockhash.Hash) {
	e.events = append(e.events, kvEvent{removed: key, tier: tier})
}

// plan starts the next step, or a run of decode steps, at now.
func (e *engine) plan(now float64) {
	e.gen++
	e.step = e.machine.Plan(longRun)
	e.steps, e.started, e.until = e.step.Steps, now, math.Inf(1)
	if e.steps == 0 {
		return
	}
	e.until = now + e.step.Seconds(e.steps)
	if e.step.PromptTokens > 0 {
		e.begun(now)
		e.busy += e.until - now
		e.computed += float64(e.step.PromptTokens)
	}
}

// ended counts the steps of a run that have ended by now, but for the last one.
func (e *engine) ended(now float64) int {
	if e.steps < 2 {
		return 0
	}
	return min(e.step.Ended(now-e.started), e.steps-1)
}

// add queues a sequence. It reports whether the engine's next event has changed. The engine is caught up.
func (e *engine) add(s *enginemodel.Sequence, now float64) bool {
	// A sequence that waits for memory holds up all behind it, one that waits for a slot of its adapter does not.
	blocked := len(e.machine.Waiting()) > 0 && e.machine.Config().Adapters.Slots == 0
	e.machine.Submit(s)
	switch {
	case e.steps == 0:
		e.plan(now)
		return true
	case e.steps > 1 && !blocked:
		e.cut()
		return true
	}
	return false // scheduled when the running step ends
}

// cut ends the planned run with the step that is running. The engine is caught up.
func (e *engine) cut() {
	if e.steps > 1 {
		e.gen++
		e.steps = 1
		e.until = e.started + e.step.Seconds(1)
	}
}
