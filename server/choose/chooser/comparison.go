package chooser

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/conduct"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
)

// smallSequences and smallContext are the load that the time of decodes is related to.
const smallSequences, smallContext = 8, 16384

// waitingAnywhere are the requests that wait in the router.
type waitingAnywhere interface {
	// Changed has them looked at again.
	Changed()
}

// comparison compares the ranks' answers with their equals' answers.
type comparison struct {
	ranks      *rankTable
	book       *load.Book
	clock      *clock
	waiting    waitingAnywhere
	log        *slog.Logger
	suspicions metric.Int64Counter
	running    atomic.Bool // Run compares
}

// run compares the ranks with their equals until ctx ends.
func (c *comparison) run(ctx context.Context) {
	c.running.Store(true)
	defer c.running.Store(false)
	tick := time.NewTicker(conduct.JudgeEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := c.clock.now(); c.ranks.conduct.Due(now) {
				c.judge(now)
			}
		}
	}
}

// judgeUnlessRun compares the ranks with their equals when that is due and Run does not, as in virtual time.
func (c *comparison) judgeUnlessRun(now time.Time) {
	if !c.running.Load() && c.ranks.conduct.Due(now) {
		c.judge(now)
	}
}

// judge compares the ranks with their equals.
func (c *comparison) judge(now time.Time) {
	usual := map[any]*usualSpeed{}
	for r := range c.ranks.all() {
		kind, _ := r.speed.Kind()
		u := usual[kind]
		if u == nil {
			u = &usualSpeed{}
			usual[kind] = u
		}
		u.add(r.model.Load(), r.conduct.About().Suspicions != 0)
	}
	for r := range c.ranks.all() {
		r.speed.Look(now)
		known := r.known.Load()
		kind, _ := r.speed.Kind()
		u := usual[kind]
		if u == nil { // it has just moved to another kind
			continue
		}
		m := u.median()
		l := c.book.View(r.slot, now)
		small := m.Step(smallSequences, smallContext)
		r.conduct.Expect(m.Step(max(1, l.InFlight-l.Prefilling), l.ContextTokens)/small, m.Token/small, budget(known), now)
	}
	for _, change := range c.ranks.conduct.Judge(now) {
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
func (c *comparison) changed(change conduct.Change) {
	for _, s := range conduct.Suspicions() {
		if change.After&s != 0 && change.Before&s == 0 {
			c.suspicions.Add(context.Background(), 1, suspicion(s))
		}
	}
	for r := range c.ranks.all() {
		if r.conduct != change.Rank {
			continue
		}
		about := r.conduct.About()
		r.speed.Exclude(change.After&conduct.Slow != 0)
		if change.After == 0 {
			c.log.Info("a rank behaves as its equals again", "replica", string(r.replica), "rank", r.index)
			continue
		}
		c.log.Warn("a rank does not behave as its equals and is avoided", "replica", string(r.replica), "rank", r.index, "suspicions", change.After.Names(),
			"slowness", about.Slowness, "token_time", duration(about.Token), "empty_share", about.EmptyShare, "overlap_trust", about.Trust)
	}
	c.waiting.Changed()
}

func newSuspicions(s *instruments.Set) metric.Int64Counter {
	var all []metric.MeasurementOption
	for _, one := range conduct.Suspicions() {
		all = append(all, suspicion(one))
	}
	return s.CounterBy("kvpilot.chooser.suspicions", "{suspicion}", "Times that a rank was found to behave unlike its equals and was avoided: slow (its output tokens take much longer), empty (it gives empty answers) or unproven (its answers do not show as cached what it claims to hold).", all...)
}

func suspicion(s conduct.Suspicion) metric.MeasurementOption {
	return instruments.Label("suspicion", s.String())
}
