package programs

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// maxPrograms and maxClasses bound the sessions and classes of a ledger. Further sessions are not programs; further classes are one.
	maxPrograms, maxClasses = 1 << 16, 1 << 12
	// maxChildren bounds the children of a session that keep its place.
	maxChildren = 64
	// A session is forgotten when it has not returned for so many horizons, and for so long at least.
	forgetAfter  = 20
	leastForgets = 10 * time.Minute
)

// Name stands for a session. Its caller makes it from tenant and session.
type Name uint64

// Rank is a rank that may serve a call.
type Rank struct {
	Slot replica.Slot
	// Capacity is its memory and Booked the part that the requests in flight take, in tokens. Capacity 0: unknown.
	Capacity, Booked float64
	// Held is the part of the prompt in tokens that its GPU holds, Loads the further part that it loads from tiers below the GPU.
	Held, Loads float64
	Pace        Pace
	// Work is the predicted time in seconds to compute the rest of the prompt there.
	Work float64
	// Full is set by Admit: the program does not fit there. Free is set with it: the tokens that would fit, 0 where the capacity is unknown.
	Full bool
	Free float64
}

// Pace is how fast a rank computes prompts: the time in seconds of a token of a short one, and the context length at which attention has doubled it; 0: unknown.
type Pace struct{ Token, Bend float64 }

// of is the mean time of a token of a context, in seconds.
func (p Pace) of(tokens float64) float64 {
	return decision.PrefillTime(p.Token, p.Bend, 0, tokens) / max(1, tokens)
}

// growth is how many times as long a token behind a context takes as the first ones.
func (p Pace) growth(tokens float64) float64 {
	if p.Bend <= 0 {
		return 1
	}
	return 1 + tokens/p.Bend
}

// Call is a session's call.
type Call struct {
	Name Name
	// Parent is the session that started this one, as an agent starts a subagent; 0: none. It counts at the first call.
	Parent Name
	// Class names the sessions that are alike: the tenant.
	Class string
	// Head names the beginning of its prompt, which sessions of one application have in common; 0: it is not known. It counts at the
	// first call.
	Head uint64
	// Tenant owns the session, for lists.
	Tenant string
	// Tokens is its prompt with the expected answer, Prompt the prompt alone.
	Tokens, Prompt int
	// Retry is set when the same call was placed before.
	Retry bool
	// Passes is set where a program of its tenant that has begun waits before it and does not fit.
	Passes bool
	// Program is the result of Arrive.
	Program bool
}

// Verdict is the result of Admit.
type Verdict uint8

const (
	// Free admits the call without an admission: its session has a place, or is no program.
	Free Verdict = iota
	// Fits admits it to the ranks that are not Full.
	Fits
	// Waits holds it: it fits nowhere.
	Waits
)

// Ledger is the account of the programs of the requests for one model. Make one with New.
type Ledger struct {
	ranks *Ranks
	// The mutex of the ranks guards all others.
	programs map[Name]*program
	classes  map[string]*class
	families families
	gaps     gaps // that have not exceeded the horizon, and some that have ended
	late     gaps // that have
	paused   int64
}

// New returns an empty ledger of programs on the ranks.
func New(ranks *Ranks) *Ledger {
	return &Ledger{ranks: ranks, programs: map[Name]*program{}, classes: map[string]*class{}}
}

// Arrive notes that a call arrived, and learns from the gap before it. It reports whether Admit may hold the call; without that, Admit
// need not be called. The caller owes one Place or Leave.
func (l *Ledger) Arrive(call Call, now, horizon time.Duration) bool {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	l.sweep(now, horizon)
	p := l.programs[call.Name]
	if p == nil {
		if len(l.programs) >= maxPrograms {
			return false
		}
		p = &program{ledger: l, kin: kin{l.class(call.Class), l.families.of(&call)}, parent: l.programs[call.Parent], history: history{name: call.Name, tenant: call.Tenant}}
		if q := p.parent; q != nil && len(q.children) < maxChildren {
			q.children = append(q.children, p)
		}
		if p.kin.family != nil {
			p.kin.family.sessions++
		}
		l.programs[call.Name] = p
	}
	gap := now - p.ended
	if p.worthFor > 0 {
		horizon = min(horizon, p.worthFor)
	}
	if p.known && !p.busy() && !call.Retry && gap < learnedUpTo*horizon {
		p.kin.learn(gap, horizon)
	}
	if p.known && !p.busy() && !p.judged && !call.Retry {
		p.judge(gap < horizon)
	}
	if p.waiting++; p.waiting == 1 {
		p.history.since = now
	}
	p.moving = !call.Retry && p.shouldMove(now)
	p.history.wants = float64(call.Tokens)
	return p.needsPlace(&call)
}

// class finds a class, or makes one. mu is held.
func (l *Ledger) class(name string) *class {
	c := l.classes[name]
	if c == nil {
		if len(l.classes) >= maxClasses {
			name = ""
		}
		if c = l.classes[name]; c == nil {
			c = newClass()
			l.classes[name] = c
		}
	}
	return c
}

// Admit decides whether a call that arrived may be placed, and sets Full of the ranks. A program that is admitted has a place from
// now on. behind is set when other programs wait and go first. It may be called again until it admits the call.
func (l *Ledger) Admit(call Call, behind bool, ranks []Rank, now time.Duration) Verdict {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	p := l.programs[call.Name]
	if p == nil || !p.needsPlace(&call) {
		return Free
	}
	child := p.isAwaited()
	upTo := admitUpTo
	switch {
	case child:
		upTo = admitChildUpTo
	case call.Passes:
		upTo = admitPassingUpTo
	case p.late:
		upTo = admitLateUpTo
	}
	from, most := p.account, 0.0 // nil unless it moves
	if from != nil {
		most = from.mostAt(p.tokens, now)
	}
	left := l.ranks.keep(ranks, now)
	var best *account
	var least, held float64
	for i := range ranks {
		r := &ranks[i]
		a := l.ranks.read(r)
		shared := p.shared
		if !p.known {
			shared = r.Held
		}
		upTo := upTo
		if p.known && r.Held+r.Loads > mostOf*p.tokens {
			upTo = max(upTo, admitHeldUpTo)
		}
		used, ok := a.fits(max(0, float64(call.Tokens)-shared), upTo, now)
		r.Free = max(0, upTo*a.capacity-used)
		if ok && from != nil {
			ok = a != from && used < most
		}
		if a.kept && left && a != from && (!child || a != p.parent.account) {
			r.Free, ok = 0, false
		}
		if r.Full = !ok; ok && (best == nil || used < least) {
			best, least, held = a, used, shared
		}
	}
	if p.moving = false; from != nil {
		if best == nil || behind { // it stays
			for i := range ranks {
				ranks[i].Full = false
			}
			return Free
		}
		p.leave()
	}
	if p.late = best == nil || behind && !child; p.late {
		l.ranks.press(ranks, now)
		return Waits
	}
	p.tokens, p.shared = float64(call.Tokens), held
	best.place(p)
	return Fits
}

// Awaited reports whether a parent with a place waits for the session: then it goes first.
func (l *Ledger) Awaited(name Name) bool {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	p := l.programs[name]
	return p != nil && p.isAwaited()
}

// Begun is the context in tokens of a session that has begun: a call of it has ended. 0 for any other one.
func (l *Ledger) Begun(name Name) int {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	if p := l.programs[name]; p != nil && p.known {
		return int(p.tokens)
	}
	return 0
}

// Adopt places a call that another ledger has placed on a rank, without a look at its memory. It may hold more than the rank has.
func (l *Ledger) Adopt(call Call, rank Rank, now, horizon time.Duration) *Place {
	l.Arrive(call, now, horizon)
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	p := l.programs[call.Name]
	if p == nil || p.waiting == 0 {
		return nil
	}
	p.leave()
	p.tokens = float64(call.Tokens)
	p.waiting--
	p.running++
	p.history.placed(&call, rank.Held)
	p.history.adopted = true
	l.ranks.at(rank.Slot).place(p)
	return &Place{ledger: l, name: call.Name, program: p}
}

// Leave ends a call that arrived and is not placed.
func (l *Ledger) Leave(name Name) {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	if p := l.programs[name]; p != nil && p.waiting > 0 {
		p.waiting--
		if !p.busy() && !p.known {
			p.leave()
			delete(l.programs, name)
		}
	}
}

// Place moves the session of a call that arrived to the rank that serves it.
func (l *Ledger) Place(call Call, rank Rank, now time.Duration) *Place {
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	p := l.programs[call.Name]
	if p == nil || p.waiting == 0 {
		return nil
	}
	rank.Booked += float64(call.Tokens)
	a := l.ranks.read(&rank)
	p.leave()
	if p.tokens = float64(call.Tokens); !p.known && p.running == 0 {
		p.shared = min(rank.Held, p.tokens)
	}
	if p.isPlain() {
		a.bring(rank.Work, now)
	}
	p.waiting--
	p.running++
	p.moving = false
	p.history.placed(&call, rank.Held)
	p.history.adopted = false
	a.place(p)
	a.relieve(now)
	return &Place{ledger: l, name: call.Name, program: p}
}

// Place is a call in flight. The nil Place has no effect.
type Place struct {
	ledger  *Ledger
	name    Name
	program *program
}

// End ends the call. tokens is the context that it leaves; final says that the session does not return, later that it returns after the
// horizon.
func (c *Place) End(tokens int, final, later bool, now time.Duration) {
	if c == nil {
		return
	}
	l, p := c.ledger, c.program
	l.ranks.mu.Lock()
	defer l.ranks.mu.Unlock()
	a := p.account
	p.leave()
	p.running--
	p.tokens = float64(tokens)
	p.ended, p.known, p.judged = now, true, false
	if a != nil {
		p.worthFor = a.worthFor(p.tokens)
	}
	l.gaps.push(gap{c.name, p, now})
	switch {
	case final && !p.busy():
		if p.known = false; l.programs[c.name] == p {
			delete(l.programs, c.name)
		}
	case a != nil && (p.busy() || !later && p.likelihood() >= likely):
		a.place(p)
	}
	if a != nil {
		a.booked = max(0, a.booked-float64(tokens))
		a.relieve(now)
	}
}

// sweep judges the gaps that have exceeded the horizon, and forgets old sessions. mu is held.
func (l *Ledger) sweep(now, horizon time.Duration) {
	for l.gaps.due(now - horizon) {
		g := l.gaps.next()
		if p := g.program; p.ended == g.since && !p.busy() {
			if !p.judged {
				p.judge(false)
			}
			l.late.push(g)
		}
	}
	for l.late.due(now - max(leastForgets, forgetAfter*horizon)) {
		g := l.late.next()
		if p := g.program; p.ended == g.since && !p.busy() && l.programs[g.name] == p {
			p.leave()
			delete(l.programs, g.name)
		}
	}
}
