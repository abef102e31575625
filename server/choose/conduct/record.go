package conduct

import "sync/atomic"

// Suspicion is a set of reasons to avoid a rank.
type Suspicion uint8

// The reasons.
const (
	// Slow: its output tokens take much longer than its equals' tokens.
	Slow Suspicion = 1 << iota
	// Empty: it gives empty answers where others do not.
	Empty
	// Unproven: its answers do not show as cached the tokens that it claims to hold.
	Unproven
)

// Suspicions lists the reasons one by one.
func Suspicions() []Suspicion { return []Suspicion{Slow, Empty, Unproven} }

// String gives one reason in the form that metrics and JSON use.
func (s Suspicion) String() string {
	switch s {
	case Slow:
		return "slow"
	case Empty:
		return "empty"
	case Unproven:
		return "unproven"
	}
	return "none"
}

// Names lists the reasons of a set.
func (s Suspicion) Names() (list []string) {
	for _, one := range Suspicions() {
		if s&one != 0 {
			list = append(list, one.String())
		}
	}
	return list
}

// Record is the evidence about a rank. It is a plain value.
type Record struct {
	Suspicions Suspicion
	// Slowness is the time of the rank's output tokens over its equals' time under the same load, Token that time in seconds; 0 when
	// unknown.
	Slowness, Token float64
	// EmptyShare is the share of answers that were empty although another replica gave one.
	EmptyShare float64
	// Trust is the share of the rank's claims that counts.
	Trust float64
	// perToken and fixed are the record's additions to a cost in seconds, per expected output token and once.
	perToken, fixed float64
}

// published is the state of a rank, for readers without its lock.
type published struct {
	// avoided is set while something is held against the rank.
	avoided atomic.Pointer[Record]
	about   atomic.Pointer[Record]
	mirror  *atomic.Pointer[Record] // gets avoided, too; nil for none; guarded by the rank's mu
}

// set makes rec readable.
func (p *published) set(rec *Record) {
	if about := p.about.Load(); about == nil && *rec == (Record{Trust: 1}) || about != nil && *about == *rec {
		return // as nearly always in a fleet at rest
	}
	fresh := *rec
	p.about.Store(&fresh)
	avoided := &fresh
	if fresh.Suspicions == 0 {
		avoided = nil
	}
	p.avoided.Store(avoided)
	if p.mirror != nil {
		p.mirror.Store(avoided)
	}
}
