package programs

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// State is how a program stands with the memory of the ranks.
type State uint8

const (
	// StateNone: the session is no program, or it has no place and wants none now.
	StateNone State = iota
	// StateRunning: a call is in flight, or waits for room on a rank.
	StateRunning
	// StateGap: it is between two calls and has a place.
	StateGap
	// StatePaused: it is between two calls and its place was taken away.
	StatePaused
	// StateWaiting: a call waits for memory.
	StateWaiting
)

// Program is a program as a list shows it. Sizes are in tokens.
type Program struct {
	Name, Parent Name // a Parent of 0: none
	Tenant       string
	State        State
	// Slot is the rank where it has a place; NoSlot for none. Resident is its context there.
	Slot     replica.Slot
	Resident int
	// Needed is the need of the call that is in flight or waits, or else the next one by the growth so far.
	Needed int
	// Calls were placed, with prompts of Prompt tokens, of which their ranks were known to hold Held.
	Calls, Prompt, Held int64
	// Wait is the time since its call waits for memory, Idle that since its last call ended; 0 while the other one counts.
	Wait, Idle time.Duration
}

// history is the part of a program's calls that lists show.
type history struct {
	name   Name
	tenant string
	// wants is the need of its last call, first the prompt of its first one, in tokens.
	wants, first        float64
	calls, prompt, held int64
	since               time.Duration // when its call began to wait for memory
	paused              bool          // its place was taken away
	adopted             bool          // another ledger placed its last call
}

// placed counts a call on a rank that holds a part of its prompt.
func (h *history) placed(call *Call, held float64) {
	if h.calls == 0 {
		h.first = float64(call.Prompt)
	}
	if h.wants = float64(call.Tokens); call.Retry {
		return
	}
	h.calls++
	h.prompt += int64(call.Prompt)
	h.held += int64(min(held, float64(call.Prompt)))
}

// state is how the program stands.
func (p *program) state(now time.Duration) State {
	switch {
	case p.likelihood() < likely:
		return StateNone
	case p.running > 0, p.waiting > 0 && (p.account != nil || !p.late):
		return StateRunning
	case p.waiting > 0:
		return StateWaiting
	case p.account != nil:
		return StateGap
	case p.history.paused && p.chance(now) >= leastChance:
		return StatePaused
	}
	return StateNone
}

// needed is the need of the program's call, or else the next one.
func (p *program) needed() float64 {
	if p.busy() {
		return p.history.wants
	}
	return p.tokens + max(0, p.tokens-p.history.first)/float64(max(1, p.history.calls))
}

// shown is the program in a list.
func (p *program) shown(state State, now time.Duration) Program {
	h := &p.history
	out := Program{Name: h.name, Tenant: h.tenant, State: state, Slot: replica.NoSlot, Needed: int(p.needed()), Calls: h.calls, Prompt: h.prompt, Held: h.held}
	if p.parent != nil {
		out.Parent = p.parent.history.name
	}
	if p.account != nil {
		out.Slot, out.Resident = p.account.slot, int(p.tokens)
	}
	switch state {
	case StateWaiting:
		out.Wait = now - h.since
	case StateGap, StatePaused:
		out.Idle = now - p.ended
	case StateNone, StateRunning:
	}
	return out
}

// Filter selects programs of a list.
type Filter struct {
	// Own leaves the programs of Tenant alone; Of too, unless it is empty.
	Own        bool
	Tenant, Of string
	// Slots are the ranks of their places; nil: any, or none.
	Slots []replica.Slot
	// States are the states that count; none: all.
	States []State
	// After is the program behind which the list begins; 0: the first.
	After Name
}

// admits reports whether the program is in the list.
func (f *Filter) admits(p *program) bool {
	h := &p.history
	switch {
	case h.name <= f.After, f.Own && h.tenant != f.Tenant, f.Of != "" && h.tenant != f.Of:
		return false
	case f.Slots == nil:
		return true
	}
	return p.account != nil && slices.Contains(f.Slots, p.account.slot)
}

// List returns the first programs in the order of names that the filter selects, at most so many.
func (l *Ledger) List(f *Filter, most int, now time.Duration) []Program {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	var found []*program
	for _, p := range l.programs {
		if !f.admits(p) {
			continue
		}
		if state := p.state(now); state != StateNone && (len(f.States) == 0 || slices.Contains(f.States, state)) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *program) int { return cmp.Compare(a.history.name, b.history.name) })
	list := make([]Program, min(len(found), most))
	for i := range list {
		list[i] = found[i].shown(found[i].state(now), now)
	}
	return list
}

// Stats counts programs.
type Stats struct {
	// Placed counts programs with a place, Paused programs that lost theirs, Waiting programs that wait for one.
	Placed, Paused, Waiting int
	// Taken counts the places that were taken away so far.
	Taken int64
}

// Want is the number of programs that have a place or want one.
func (s *Stats) Want() int { return s.Placed + s.Paused + s.Waiting }

// Needed is the number of replicas that would have memory for all programs, where so many have memory for the programs with a place.
func (s *Stats) Needed(replicas int) int {
	if s.Placed == 0 || s.Want() == s.Placed {
		return replicas
	}
	return (replicas*s.Want() + s.Placed - 1) / s.Placed
}

// Add adds the counts of other.
func (s *Stats) Add(other Stats) {
	s.Placed, s.Paused, s.Waiting, s.Taken = s.Placed+other.Placed, s.Paused+other.Paused, s.Waiting+other.Waiting, s.Taken+other.Taken
}

// Stats returns the counts. With own, programs whose last call another ledger placed are left out: that one counts them.
func (l *Ledger) Stats(own bool, now time.Duration) Stats {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	s := Stats{Taken: l.paused}
	for _, p := range l.programs {
		if own && p.history.adopted {
			continue
		}
		switch p.state(now) {
		case StateRunning, StateGap:
			s.Placed++
		case StatePaused:
			s.Paused++
		case StateWaiting:
			s.Waiting++
		case StateNone:
		}
	}
	return s
}
