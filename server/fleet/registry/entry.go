package registry

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// entry is one replica in the core: its listing, and the facts learned about it. Only the core's goroutine touches it.
type entry struct {
	listing
	slots  []replica.Slot
	prober *prober
	health health
	life   life
	report report
	vitals *vitals

	// Of the present view.
	drain *Drain // an operator's; nil: none
	state replica.State
	since time.Time
	view  *replica.Replica

	dirty  bool // view is out of date
	reslot bool // its ranks must become new ones
}

func newEntry(want listing) *entry {
	return &entry{listing: want, dirty: true, since: time.Now(), vitals: new(vitals)}
}

// vitals change with every probe and renewal; snapshots point at them, so that such a change
// needs no new snapshot.
type vitals struct {
	probed, leaseEnds atomic.Int64 // Unix nanoseconds; 0: never
	failures          atomic.Int64
	pulse             pulse
}

func (v *vitals) lease(ends time.Time) { v.leaseEnds.Store(ends.UnixNano()) }

func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// report has the facts that a replica reported about itself, to probes and to other parts.
type report struct {
	models  []replica.Model
	sources []replica.Events // where its ranks publish
	version version
	learned Learned
}

// adopt applies the facts of a successful probe; nil fields were not asked for.
func (r *report) adopt(res result) (changed bool) {
	if res.models != nil && !slices.Equal(res.models, r.models) {
		r.models, changed = res.models, true
	}
	if res.version != nil && *res.version != r.version {
		r.version, changed = *res.version, true
	}
	return changed
}

const (
	// sameStart is how far apart two readings of one engine's start may be.
	sameStart = 3 * time.Second
	// sameRestart is how far apart two signs of one restart may be seen.
	sameRestart = 10 * time.Second
)

// life counts the engine processes behind a replica.
type life struct {
	number uint64    // zero: it was never ready
	seen   time.Time // when the present one was first noticed
	began  time.Time // when the present one began, as it reports; zero: it does not report it
}

// begin begins the first life.
func (l *life) begin(now time.Time) {
	if l.number == 0 {
		l.number, l.seen = 1, now
	}
}

// renew begins the next life, if there was one.
func (l *life) renew() bool {
	if l.number == 0 {
		return false
	}
	l.number++
	l.seen = time.Now()
	return true
}

// update applies the present lists of the sources. A replica that moved, or that publishes elsewhere, gets new ranks: facts about the old
// ones do not hold. reprobe reports that its prober is out of date.
func (e *entry) update(want listing) (reslot, reprobe bool) {
	old, shown := e.spec, e.access
	if old.equal(want.spec) && e.source == want.source && shown == want.access {
		return false, false
	}
	e.listing, e.dirty = want, true
	moved := old.URL != want.spec.URL
	reslot = moved || old.Ranks != want.spec.Ranks || old.ranksSet != want.spec.ranksSet || old.Events != want.spec.Events || old.BlockSize != want.spec.BlockSize
	e.reslot = e.reslot || reslot
	if moved {
		e.health.restart()
		e.life.began = time.Time{}
		e.report = report{version: e.report.version}
	}
	return reslot, moved || old.asks() != want.spec.asks() || shown != want.access || !slices.Equal(old.Models, want.spec.Models) ||
		old.pod.model != want.spec.pod.model || !old.pod.adapters.equal(want.spec.pod.adapters)
}

func (s Spec) equal(o Spec) bool {
	return s.ID == o.ID && s.URL == o.URL && s.access() == o.access() && s.Pool == o.Pool && slices.Equal(s.Models, o.Models) &&
		s.Ranks == o.Ranks && s.ranksSet == o.ranksSet && s.Events == o.Events && s.BlockSize == o.BlockSize && s.Blocks == o.Blocks &&
		s.MaxBatchedTokens == o.MaxBatchedTokens && s.MetricsPort == o.MetricsPort && s.pod.equal(o.pod) && s.Leaving == o.Leaving && maps.Equal(s.Labels, o.Labels)
}

// rebuild makes a new view and reports whether the state is another one.
func (e *entry) rebuild(drain *Drain) (changed bool) {
	state := e.health.state
	e.drain = drain
	var ranks []int
	if drain != nil {
		ranks = drain.Ranks
	}
	if drain != nil && ranks == nil || e.spec.Leaving || e.spec.pod.unready {
		state = replica.StateDraining
	}
	changed = state != e.state || e.view == nil
	if changed {
		e.state, e.since = state, time.Now()
	}
	learned := &e.report.learned
	e.view = &replica.Replica{
		ID: e.spec.ID, URL: e.spec.URL, MetricsURL: e.spec.metricsURL(), APIKey: e.access.key, TLS: e.access.peer, State: state, Life: e.life.number,
		Slots: e.slots, Events: e.events(), Models: e.report.models, Labels: e.spec.Labels,
		Version: e.report.version.text, RustFrontend: e.report.version.rust, Since: e.since, Mute: e.health.mute && state == replica.StateUnhealthy, DrainedRanks: ranks,
		BlockSize:        cmp.Or(e.spec.BlockSize, learned.BlockSize),
		Blocks:           cmp.Or(e.spec.Blocks, learned.Blocks),
		MaxBatchedTokens: cmp.Or(e.spec.MaxBatchedTokens, learned.MaxBatchedTokens),
	}
	return changed
}

// ranks is the number of the replica's ranks: as the operator sets it, else as the replica reports it.
func (e *entry) ranks() int {
	if e.spec.ranksSet || !e.spec.asks() {
		return e.spec.Ranks
	}
	return max(1, len(e.report.sources))
}

// events gives each rank's addresses, as configured or as the replica reports.
func (e *entry) events() []replica.Events {
	if !e.spec.asks() {
		events, _ := e.spec.events() // checked when the spec was completed
		return events
	}
	events := slices.Clone(e.report.sources[:min(len(e.report.sources), e.ranks())])
	for i := range events {
		if e.spec.Events.Topic != "" {
			events[i].Topic = e.spec.Events.Topic
		}
	}
	return events
}

// binds reports whether the router binds an address for the published ranks.
func (e *entry) binds() bool {
	return slices.ContainsFunc(e.view.Events, func(ev replica.Events) bool { return ev.Bind })
}

func (e *entry) details() details {
	return details{
		Details: Details{Source: e.source, Drained: e.state == replica.StateDraining, Drain: e.drain, Leaving: e.spec.Leaving, LastError: e.health.lastError},
		vitals:  e.vitals,
	}
}

// details are the part that a snapshot keeps; fields that change without a new snapshot are read through vitals.
type details struct {
	Details
	vitals *vitals
}

func (d details) read() Details {
	if d.vitals != nil {
		d.Failures = int(d.vitals.failures.Load())
		d.Probed = moment(d.vitals.probed.Load())
		d.LeaseEnds = moment(d.vitals.leaseEnds.Load())
	}
	return d.Details
}
