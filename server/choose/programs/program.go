package programs

import "time"

// program is a session.
type program struct {
	ledger  *Ledger
	kin     kin
	account *account // of the rank where it has a place; nil: it has none
	index   int      // in the account's list
	// tokens is its context, shared the part of it that its rank held before its first call.
	tokens, shared float64
	// running are its calls in flight, waiting the calls that arrived and are not placed.
	running, waiting int
	ended            time.Duration // when the last call ended
	worthFor         time.Duration // how long a gap may be for which its place is worth keeping; 0: unknown
	record           record
	history          history
	judged           bool // the last gap counts already
	known            bool // a call has ended
	late             bool // it waits for a place
	moving           bool // it has a place, and its call had better go to another rank
	// parent started it, children are the programs that it started and that may be at work. A parent is older than its children.
	parent   *program
	children []*program
}

// busy reports whether its context is certain to be needed.
func (p *program) busy() bool { return p.running+p.waiting > 0 }

// needsPlace reports whether a call of p must be admitted.
func (p *program) needsPlace(call *Call) bool {
	return (p.account == nil || p.moving) && !call.Retry && p.likelihood() >= likely
}

func (p *program) judge(quick bool) {
	p.judged = true
	p.record.judge(quick)
	p.kin.judge(quick)
}

// isAwaited reports whether a parent with a place waits for the session.
func (p *program) isAwaited() bool {
	return p.parent != nil && (p.parent.account != nil || p.parent.busy())
}

// gap is the time after a session's call.
type gap struct {
	name    Name
	program *program
	since   time.Duration
}

// gaps is a queue in the order of their begin.
type gaps struct{ list []gap }

func (q *gaps) push(g gap) { q.list = append(q.list, g) }

func (q *gaps) due(since time.Duration) bool { return len(q.list) > 0 && q.list[0].since <= since }

func (q *gaps) next() gap {
	g := q.list[0]
	q.list[0] = gap{}
	q.list = q.list[1:]
	return g
}
