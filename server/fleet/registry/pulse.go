package registry

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// pulse is how promptly a replica answers its health probe. It changes with every probe and
// is shared by the prober, the snapshots and their readers.
type pulse struct {
	// asked is when the unanswered probe was sent, in Unix nanoseconds; 0: there is none.
	asked atomic.Int64
	// answered is when the last answer came, of any kind.
	answered atomic.Int64
	// usual is the longest time that answers took lately, in nanoseconds.
	usual atomic.Int64
	// paused is set while the engine says that it is paused.
	paused atomic.Bool
}

const (
	// usualKeep is the factor by which each further answer shrinks the longest answer time.
	usualKeep = 0.95
	// patience is how many times longer than usual an answer may take.
	patience = 4
	// mostPatience bounds that.
	mostPatience = 10 * time.Second
)

// ask notes a probe. While an earlier one is unanswered, that one counts.
func (p *pulse) ask(now time.Time) { p.asked.CompareAndSwap(0, now.UnixNano()) }

// answer notes that something came back after so long.
func (p *pulse) answer(now time.Time, took time.Duration) {
	p.usual.Store(max(int64(took), int64(usualKeep*float64(p.usual.Load()))))
	p.answered.Store(now.UnixNano())
	p.asked.Store(0)
}

// excuse drops a probe that was never sent.
func (p *pulse) excuse() { p.asked.Store(0) }

// Pulse is how a replica answers its health probe.
type Pulse struct {
	// Asked is when the unanswered probe was sent; zero when there is none.
	Asked time.Time
	// Late is by how much its answer is later than answers of this replica usually are.
	Late time.Duration
	// Answered is when the last answer came; zero: never.
	Answered time.Time
	// Paused is set while its engine says that it is paused.
	Paused bool
}

// Pulse returns how promptly a replica answers its health probe. That shows a problem of a ready replica
// long before it counts as unhealthy. A replica that starts has no requests, and is not late.
func (r *Registry) Pulse(id replica.ID, now time.Time) Pulse {
	s := r.Snapshot()
	v := s.details[id].vitals
	if v == nil {
		return Pulse{}
	}
	p := Pulse{Answered: moment(v.pulse.answered.Load()), Paused: v.pulse.paused.Load()}
	if rep, ok := s.byID[id]; ok && rep.State == replica.StateStarting {
		return p
	}
	if p.Asked = moment(v.pulse.asked.Load()); !p.Asked.IsZero() {
		p.Late = max(0, now.Sub(p.Asked)-min(patience*time.Duration(v.pulse.usual.Load()), mostPatience))
	}
	return p
}

// Alive notes evidence that a replica is alive: its event feed, its metrics, a request. One that
// may not serve yet is probed at once; otherwise this costs a look at the snapshot.
func (r *Registry) Alive(id replica.ID) {
	s := r.Snapshot()
	if rep, ok := s.byID[id]; ok && (rep.State == replica.StateUnhealthy || rep.State == replica.StateStarting) {
		s.probers[id].wake()
	}
}

// whence is how far a probe came.
type whence struct{ connected bool }

// traced sets w.connected when the probe under ctx has a connection.
func traced(ctx context.Context, w *whence) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { w.connected = true }})
}
