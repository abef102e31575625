package compare

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// smallSequences and smallContext are the load that the time of decodes is related to.
const smallSequences, smallContext = 8, 16384

// Waiting are the requests that wait in the router.
type Waiting interface {
	// Changed has them looked at again.
	Changed()
}

// Comparison compares the ranks' answers with their equals' answers.
type Comparison struct {
	Ranks      *rank.Table
	Book       *load.Book
	Clock      *clock.Clock
	Waiting    Waiting
	Log        *slog.Logger
	Suspicions metric.Int64Counter
	running    atomic.Bool // Run compares
}

// Run compares the ranks with their equals until ctx ends.
func (c *Comparison) Run(ctx context.Context) {
	c.running.Store(true)
	defer c.running.Store(false)
	tick := time.NewTicker(conduct.JudgeEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := c.Clock.Now(); c.Ranks.Conduct.Due(now) {
				c.judge(now)
			}
		}
	}
}

// JudgeUnlessRun compares the ranks with their equals when that is due and Run does not, as in virtual time.
func (c *Comparison) JudgeUnlessRun(now time.Time) {
	if !c.running.Load() && c.Ranks.Conduct.Due(now) {
		c.judge(now)
	}
}

// judge compares the ranks with their equals.
func (c *Comparison) judge(now time.Time) {
	usual := map[any]*usualSpeed{}
	for r := range c.Ranks.All() {
		kind, _ := r.Speed.Kind()
		u := usual[kind]
		if u == nil {
			u = &usualSpeed{}
			usual[kind] = u
		}
		u.add(r.Model.Load(), r.Conduct.About().Suspicions != 0)
	}
	for r := range c.Ranks.All() {
		r.Speed.Look(now)
		known := r.Known.Load()
		kind, _ := r.Speed.Kind()
		u := usual[kind]
		if u == nil { // it has just moved to another kind
			continue
		}
		m := u.median()
		l := c.Book.View(r.Slot, now)
		small := m.Step(smallSequences, smallContext)
		r.Conduct.Expect(m.Step(max(1, l.InFlight-l.Prefilling), l.ContextTokens)/small, m.Token/small, layout.Budget(known), now)
	}
	for _, change := range c.Ranks.Conduct.Judge(now) {
		c.changed(change)
	}
}

// usualSpeed lists the decode times of a kind's ranks: of the unsuspected ranks, if there are any.
type usualSpeed struct {
	token, base, load []float64
	suspects          bool
}

func (u *usualSpeed) add(m *speed.Model, suspect bool) {
	switch {
	case suspect && len(u.token) > 0 && !u.suspects:
		return
	case !suspect && u.suspects:
		*u = usualSpeed{}
	}
	u.suspects = suspect
	u.token, u.base, u.load = append(u.token, m.Token), append(u.base, m.Base), append(u.load, m.Load)
}

// median is the Model of a typical one; of two, the faster one's.
func (u *usualSpeed) median() speed.Model {
	middle := func(list []float64) float64 {
		slices.Sort(list)
		return list[(len(list)-1)/2]
	}
	return speed.Model{Token: middle(u.token), Base: middle(u.base), Load: middle(u.load)}
}

// changed logs and counts a change of a rank's suspicions.
func (c *Comparison) changed(change conduct.Change) {
	for _, s := range conduct.Suspicions() {
		if change.After&s != 0 && change.Before&s == 0 {
			c.Suspicions.Add(context.Background(), 1, suspicion(s))
		}
	}
	for r := range c.Ranks.All() {
		if r.Conduct != change.Rank {
			continue
		}
		about := r.Conduct.About()
		r.Speed.Exclude(change.After&conduct.Slow != 0)
		if change.After == 0 {
			c.Log.Info("a rank behaves as its equals again", "replica", string(r.Replica), "rank", r.Index)
			continue
		}
		c.Log.Warn("a rank does not behave as its equals and is avoided", "replica", string(r.Replica), "rank", r.Index, "suspicions", change.After.Names(),
			"slowness", about.Slowness, "token_time", clock.Duration(about.Token), "empty_share", about.EmptyShare, "overlap_trust", about.Trust)
	}
	c.Waiting.Changed()
}

// NewCounter declares the counter of suspicions.
func NewCounter(s *instruments.Set) metric.Int64Counter {
	var all []metric.MeasurementOption
	for _, one := range conduct.Suspicions() {
		all = append(all, suspicion(one))
	}
	return s.CounterBy("kvpilot.chooser.suspicions", "{suspicion}", "Times that a rank was avoided because it differs from its equals: slow (output tokens), empty (answers) or unproven (its answers do not confirm its claimed cache).", all...)
}

func suspicion(s conduct.Suspicion) metric.MeasurementOption {
	return instruments.Label("suspicion", s.String())
}
