package enginestats

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// ranks returns the target's slots by rank.
func (p *Poller) ranks(t *target) map[int]replica.Slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(t.slots)
}

// own counts the requests that this router has on a rank.
func (p *Poller) own(slot replica.Slot) int {
	if p.params.Bookings == nil {
		return 0
	}
	return p.params.Bookings.InFlight(slot)
}

// noteOwn notes the requests that this router has on each rank.
func (p *Poller) noteOwn(t *target) {
	for _, slot := range p.ranks(t) {
		if t.senders[slot] == nil {
			t.senders[slot] = new(Senders)
		}
		t.senders[slot].Asked(p.own(slot))
	}
}

// apply applies a page.
func (p *Poller) apply(t *target, pg *page, now time.Time) {
	slots := p.ranks(t)
	engines := slices.Sorted(maps.Keys(pg.engines))
	counted, loras := uint64(0), pg.report(len(slots))
	for place, index := range engines {
		e := pg.engines[index]
		counted += count(e.prompt + e.output)
		slot, ok := pick(slots, index, place, len(engines))
		a := p.account(slot)
		if !ok || a == nil {
			continue
		}
		if t.senders[slot] == nil {
			t.senders[slot] = new(Senders)
		}
		report := e.stats(now)
		report.Adapters = loras
		s := t.senders[slot].See(report, p.own(slot), p.config.Load().Stale)
		a.stats.Store(&s)
	}
	p.notify(t, pg, counted, now)
}

// pick finds the slot of an engine. Its label is the rank's index, or, when a replica shows the
// ranks of a larger group, the label's place among the others.
func pick(slots map[int]replica.Slot, index, place, engines int) (replica.Slot, bool) {
	if engines == len(slots) {
		index = place
	}
	slot, ok := slots[max(index, 0)]
	return slot, ok
}

func (e *engine) stats(now time.Time) Stats {
	fetched := e.fetched
	if !e.sources { // before vLLM 0.16
		fetched = e.found
	}
	return Stats{
		FetchedTokens: count(fetched), Fetches: e.sources || e.connector,
		At: now, Running: int(count(e.running)), Waiting: int(count(e.waiting)), KVUsage: min(max(e.usage, 0), 1),
		QueryTokens: count(max(e.queries, e.oldQueries)), HitTokens: count(max(e.hits, e.oldHits)), PrefillSeconds: max(0, e.prefill), ComputedTokens: count(e.computed),
		PromptTokens: count(e.prompt), OutputTokens: count(e.output),
		Preemptions: count(e.preemptions), Sleep: e.sleep,
	}
}

// count makes a sample a count, within range.
func count(v float64) uint64 { return uint64(min(max(v, 0), 1<<62)) }

// notify reports changes of the engine itself.
func (p *Poller) notify(t *target, pg *page, counted uint64, now time.Time) {
	began, fell, learned := t.began, counted < t.counted, t.learned
	t.counted = counted
	if !pg.began.IsZero() {
		t.began = pg.began
	}
	if pg.learned != (Learned{}) {
		t.learned = pg.learned
	}
	o, id := p.params.Observer, t.replica.Load().ID
	if o == nil {
		return
	}
	switch {
	case !t.began.Equal(began):
		o.EngineBegan(id, pg.began.Add(pg.ahead))
	case pg.began.IsZero() && fell:
		o.EngineRestarted(id, now)
	}
	if t.learned != learned {
		o.EngineLearned(id, pg.learned)
	}
	o.EngineAnswered(id)
}

// ahead is how far this machine's clock is ahead of the machine that made the answer, to a second.
func ahead(resp *http.Response, now time.Time) time.Duration {
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0
	}
	if d := now.Sub(date).Truncate(time.Second); d > time.Second || d < -time.Second {
		return d
	}
	return 0 // the effect of rounding on clocks that agree
}
