package registry

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// entry is what the core knows of one replica. Only the core's goroutine touches it.
type entry struct {
	id     replica.ID
	spec   Spec
	source string
	access credentials
	slots  []replica.Slot
	prober *prober

	health   replica.State // Starting, Ready or Unhealthy; draining lies above it
	drain    *Drain        // an operator's; nil: none
	ups      int           // consecutive probes that succeeded
	downs    int           // consecutive probes that failed
	life     uint64
	lifeSeen time.Time // when the present life was first noticed
	began    time.Time // when the engine process began, as it reports; zero: it does not report it
	gone     bool      // its port was closed since it last answered
	mute     bool      // unhealthy because probes get no answer

	models  []replica.Model
	sources []replica.Events // where it reports that its ranks publish
	version string
	rust    bool
	learned Learned

	lastError string
	vitals    *vitals

	dirty  bool // view is out of date
	reslot bool // its ranks must become new ones
	state  replica.State
	since  time.Time
	view   *replica.Replica
}

func newEntry(id replica.ID, want listing) *entry {
	return &entry{
		id: id, spec: want.spec, source: want.source, access: want.access, dirty: true, since: time.Now(), vitals: new(vitals),
	}
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

// update applies what the sources list now. A replica that moved, or that publishes elsewhere,
// gets new ranks: what was known of the old ones does not hold.
func (e *entry) update(want listing, c *core) {
	old, shown := e.spec, e.access
	if old.equal(want.spec) && e.source == want.source && shown == want.access {
		return
	}
	e.spec, e.source, e.access, e.dirty = want.spec, want.source, want.access, true
	moved := old.URL != want.spec.URL
	if moved || old.Ranks != want.spec.Ranks || old.ranksSet != want.spec.ranksSet || old.Events != want.spec.Events || old.BlockSize != want.spec.BlockSize {
		e.reslot = true
		c.r.log.Info("replica registered again with changed metadata", "replica", e.id, "url", want.spec.URL)
	}
	if moved {
		e.health, e.ups, e.downs, e.models, e.learned, e.began = replica.StateStarting, 0, 0, nil, Learned{}, time.Time{}
		e.sources = nil
	}
	if moved || old.asks() != want.spec.asks() || shown != want.access || !slices.Equal(old.Models, want.spec.Models) ||
		old.model != want.spec.model || !old.adapters.equal(want.spec.adapters) {
		e.prober.stop()
		e.prober = c.startProber(e)
	}
}

func (s Spec) equal(o Spec) bool {
	return s.ID == o.ID && s.URL == o.URL && s.access() == o.access() && s.Pool == o.Pool && slices.Equal(s.Models, o.Models) &&
		s.Ranks == o.Ranks && s.ranksSet == o.ranksSet && s.Events == o.Events && s.BlockSize == o.BlockSize && s.Blocks == o.Blocks &&
		s.MaxBatchedTokens == o.MaxBatchedTokens && s.MetricsPort == o.MetricsPort && s.model == o.model && s.adapters.equal(o.adapters) && s.leaving == o.leaving && maps.Equal(s.Labels, o.Labels)
}

// took applies the result of a probe.
func (e *entry) took(res result, c *core) {
	e.vitals.probed.Store(res.at.UnixNano())
	if res.err != nil {
		e.failed(res, c)
		e.vitals.failures.Store(int64(e.downs))
		return
	}
	e.vitals.failures.Store(0)
	if e.lastError != "" {
		e.lastError, e.dirty = "", true
	}
	if e.gone {
		e.gone = false
		if e.began.IsZero() { // else its own report counts
			c.restarted(e, res.at)
		}
	}
	e.downs = 0
	e.ups++
	e.adopt(res)
	if res.sources != nil {
		e.found(*res.sources, c)
	}
	if e.health == replica.StateReady || len(e.models) == 0 {
		return
	}
	if e.health == replica.StateStarting || e.ups >= c.r.config().Probe.Up {
		e.health, e.dirty = replica.StateReady, true
		if e.life == 0 {
			e.life, e.lifeSeen = 1, res.at
		}
	}
}

// adopt applies what a successful probe learned; nil fields were not asked for.
func (e *entry) adopt(res result) {
	if res.models != nil && !slices.Equal(res.models, e.models) {
		e.models, e.dirty = res.models, true
	}
	if res.version != nil && (res.version.text != e.version || res.version.rust != e.rust) {
		e.version, e.rust, e.dirty = res.version.text, res.version.rust, true
	}
}

func (e *entry) failed(res result, c *core) {
	e.ups = 0
	e.downs++
	e.gone = e.gone || res.refused
	if text := res.err.Error(); text != e.lastError {
		e.lastError, e.dirty = text, true
	}
	if e.health == replica.StateUnhealthy && e.mute && !res.mute {
		e.mute, e.dirty = false, true // it is more than late
	}
	if e.health != replica.StateReady || !res.refused && e.downs < c.r.config().Probe.Down {
		return // a replica that never was healthy is still starting
	}
	c.r.log.Warn("replica is unhealthy", "replica", e.id, "error", res.err)
	e.health, e.mute, e.dirty = replica.StateUnhealthy, res.mute, true
}

// rebuild makes a new view and reports whether the state is another one.
func (e *entry) rebuild(drain *Drain) (changed bool) {
	state := e.health
	e.drain = drain
	if drain != nil || e.spec.leaving {
		state = replica.StateDraining
	}
	changed = state != e.state || e.view == nil
	if changed {
		e.state, e.since = state, time.Now()
	}
	e.view = &replica.Replica{
		ID: e.id, URL: e.spec.URL, MetricsURL: e.spec.metricsURL(), APIKey: e.access.key, TLS: e.access.peer, State: state, Life: e.life,
		Slots: e.slots, Events: e.events(), Models: e.models, Labels: e.spec.Labels,
		Version: e.version, RustFrontend: e.rust, Since: e.since, Mute: e.mute && state == replica.StateUnhealthy,
		BlockSize:        cmp.Or(e.spec.BlockSize, e.learned.BlockSize),
		Blocks:           cmp.Or(e.spec.Blocks, e.learned.Blocks),
		MaxBatchedTokens: cmp.Or(e.spec.MaxBatchedTokens, e.learned.MaxBatchedTokens),
	}
	return changed
}

// binds reports whether the router binds an address for the published ranks.
func (e *entry) binds() bool {
	return slices.ContainsFunc(e.view.Events, func(ev replica.Events) bool { return ev.Bind })
}

func (e *entry) details() details {
	return details{
		Details: Details{Source: e.source, Drained: e.state == replica.StateDraining, Drain: e.drain, LastError: e.lastError},
		vitals:  e.vitals,
	}
}

// details are what a snapshot keeps; fields that change without a new snapshot are read through vitals.
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
