package poison

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Doubts are the failures of one request that may be its own fault. They count against no replica before another replica has shown
// whose fault they are: it serves the request, or fails it in the same way. The zero value has none. It belongs to one goroutine at a time.
type Doubts struct {
	open  []Doubt
	alike bool
}

// Doubt is a failure of one replica.
type Doubt struct {
	Replica replica.ID
	Pass    breaker.Pass
	Verdict retry.Verdict
	// Begun is set when the client had something of the answer.
	Begun bool
	// At is how many pieces of the answer the client had.
	At int
}

// Report takes the finding about a doubt. It is called once for each.
type Report func(Doubt, retry.Finding)

// Open reports whether there are failures that are not settled.
func (d *Doubts) Open() bool { return len(d.open) > 0 }

// Alike reports whether two replicas have failed the request in the same way.
func (d *Doubts) Alike() bool { return d.alike }

// Add adds a failure of the request named from. One that another replica had in the same way is the request's.
func (d *Doubts) Add(m *Memory, from retry.Origin, one Doubt, report Report) {
	same := slices.ContainsFunc(d.open, func(o Doubt) bool {
		return o.Replica != one.Replica && o.At == one.At && retry.Alike(o.Verdict, one.Verdict)
	})
	d.open = append(d.open, one)
	if same && !d.alike {
		d.alike = true
		m.Failed(from)
	}
	if d.alike {
		d.resolve(from, retry.CauseRequest, false, report)
	}
}

// Served settles the failures when another replica serves the request: those replicas were at fault. A failure after the client's first
// byte is settled when the answer is whole.
func (d *Doubts) Served(m *Memory, from retry.Origin, whole bool, report Report) {
	if !d.Open() || !whole && slices.ContainsFunc(d.open, func(o Doubt) bool { return o.Begun }) {
		return
	}
	m.served(from)
	d.resolve(from, retry.CauseNone, true, report)
}

// Refused settles the failures when another replica refuses the request: it is wrong in itself.
func (d *Doubts) Refused(from retry.Origin, report Report) {
	d.resolve(from, retry.CauseRequest, false, report)
}

// Conclude settles the failures that no other replica was compared for.
func (d *Doubts) Conclude(m *Memory, from retry.Origin, report Report) {
	cause := retry.CauseNone
	switch {
	case m.Times(from) > 0:
		cause = retry.CauseRequest
	case m.Suspect(from):
		cause = retry.CauseTenant
	}
	d.resolve(from, cause, false, report)
}

// resolve reports the open doubts: with the cause, or with CauseNone as the replica's.
func (d *Doubts) resolve(from retry.Origin, cause retry.Cause, sure bool, report Report) {
	open := d.open
	d.open = nil
	for _, one := range open {
		f := retry.Find(one.Verdict, from)
		f.Sure = sure
		if cause != retry.CauseNone {
			f.Cause = cause
		}
		report(one, f)
	}
}
