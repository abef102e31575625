package chooser

import (
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// decodeWeight is the weight of a second of decoding relative to a second before the first token: 0.3 for the request's own, and as
	// much for the requests that decode with it: their steps grow as much. It spreads prompts that many
	// ranks hold, or could: docs/adr/017-whole-answer.md.
	decodeWeight = 0.6
	// rhoCap bounds ω: a full fleet must still be able to spread a prefix.
	rhoCap = 0.9
)

// reading is a rank's state at one moment.
type reading struct {
	visit uint64
	load  load.RankLoad
	busy  float64 // as in decision.Pace
	decision.Revisits
}

// readings are the loads that were read. The zero value is outside of a visit of the hold queue.
type readings struct {
	// seen has a visit's readings of the ranks, by slot; an entry of an earlier visit
	// is not valid. visit is 0 outside of a visit.
	seen  []reading
	visit uint64
	once  reading // the last one outside of a visit
	near  uint64  // the sum of the words that approach has read, which has no meaning
	// report is the engine's of the candidate whose load is read.
	report Report
}

// gauge is a moment at which ranks are read.
type gauge struct {
	views load.Views
	now   int64 // on the chooser's scale
}

// reading reads how a rank stands, once per visit of the hold queue: a booking by others during the visit shows when
// a booking is refused, and forget drops readings that the visit's own bookings changed.
func (r *readings) reading(g *gauge, slot replica.Slot, rk *rank) *reading {
	at := &r.once
	if r.visit != 0 {
		for int(slot) >= len(r.seen) {
			r.seen = append(r.seen, reading{})
		}
		if at = &r.seen[slot]; at.visit == r.visit {
			return at
		}
		at.visit = r.visit
	}
	g.views.Read(slot, &at.load)
	at.busy, at.Revisits = 0, decision.Revisits{}
	if rk != nil {
		l := &rk.lately
		left := l.fade(g.now)
		at.busy, at.Residual = left*l.busy.get(), left*l.squares.get()
		if returns := l.returns.get(); returns > 0 {
			at.Returns, at.Saved = left*returns, l.saved.get()/returns
		}
	}
	return at
}

const (
	// ahead is how many ranks are brought near at once; up to alreadyNear ranks all are in the processor's cache anyway.
	ahead       = 16
	alreadyNear = 256
)

// approach reads a little of each of the next ranks from i on: their accounts lie far apart in memory, and the processor fetches several at a
// time if nothing is computed in between.
func (s *evaluation) approach(g *gauge, i int) {
	end := min(i+ahead, len(s.ranks))
	for j := i; j < end; j++ {
		g.views.Approach(s.d.Candidates[j].Slot)
		if rk := s.ranks[j]; rk != nil {
			s.readings.near += uint64(rk.lately.at.Load()) + uint64(rk.liveness.InFlight())
		}
	}
	for j := i; j < end; j++ {
		if rk := s.ranks[j]; rk != nil {
			s.readings.near += uint64(rk.model.Load().Samples)
		}
	}
}

// forget makes the next reading of the slot a fresh one.
func (r *readings) forget(slot replica.Slot) {
	if int(slot) < len(r.seen) {
		r.seen[slot].visit = 0
	}
}

// loads reads the bookings on each rank, and how fast it is. It may be called again for the
// same candidates when a booking lost a race.
func (e *evaluator) loads(s *evaluation, req *Request, now time.Time, planned map[replica.Slot]float64) {
	d := &s.d
	set := e.settings.or(req.Settings)
	limit := set.config.MaxRequestsPerRank
	if o := req.Options.MaxRequests; o > 0 && (limit == 0 || o < limit) {
		limit = o
	}
	var busy, rate float64
	usable := 0
	g := gauge{views: e.book.ViewAll(now), now: e.clock.since(now)}
	decodes := decodeWeight * float64(outputs(d.ExpectedOutput))
	s.versions = sized(s.versions, len(d.Candidates))
	for i := range d.Candidates {
		if i%ahead == 0 && len(d.Candidates) > alreadyNear {
			s.approach(&g, i)
		}
		cand, rk := &d.Candidates[i], s.ranks[i]
		at := s.readings.reading(&g, cand.Slot, rk)
		l := &at.load
		s.versions[i] = l.Version
		cand.Requests, cand.Waiting = uint32(l.InFlight), uint32(l.Prefilling)
		cand.QueuedTokens = uint32(max(0, l.PrefillTokens))
		cand.DecodeBlocks = l.DecodeBlocks
		cand.EngineWaiting, cand.KVUsage = -1, -1
		if cand.Veto == decision.VetoCap {
			cand.Veto = decision.VetoNone
		}
		if cand.Veto == decision.VetoNone && limit > 0 && l.InFlight >= limit {
			cand.Veto = decision.VetoCap
		}
		if rk == nil {
			continue
		}
		if r := s.owner(i); rk.known.Load() != r {
			e.ranks.update(rk, r)
		}
		m := rk.model.Load()
		cand.TokenTime, cand.Bend, cand.Overhead = m.Token*e.bias, m.Bend, m.Overhead
		cand.Spread, cand.Speed = m.Spread, m.Source
		cand.StepTime = m.Step(l.InFlight, l.ContextTokens)
		cand.Decode = decodes * (cand.StepTime - m.Base)
		cand.Backlog = l.PrefillTime.Seconds() + min(l.Overdue, maxOverdue).Seconds()/2
		cand.Planned = planned[cand.Slot] // a nil map has none
		cand.Drag, cand.Suspicions = 0, 0 // of an earlier reading
		conducted(cand, rk, float64(min(outputs(d.ExpectedOutput), usualOutput)), now)
		e.reported(&s.readings.report, cand, rk, l.Assumed, now)
		if s.whole {
			cand.Backlog += e.undisturbed(d, cand, l, rk.work.get())
		}
		budget := s.pool.ranks[i].budget
		cand.Slowdown = cand.StepTime / (budget * cand.TokenTime)
		cand.FullStep = budget*cand.TokenTime + cand.StepTime
		cand.Crowding = e.crowding(cand, d)
		if cand.Veto == decision.VetoNone {
			cand.Busy, cand.Revisits = at.busy, at.Revisits
			busy += cand.Busy
			rate += 1 / cand.TokenTime
			usable++
		}
	}
	d.Load, d.Omega, d.Rate = 0, 1, 0
	if usable > 0 {
		d.Load, d.Rate = busy/float64(usable), rate/float64(usable)
		d.Omega = omega(d.Load, usable)
	}
}

// omega is the weight of uncached work: a second of it costs others nothing while ranks are idle,
// and many seconds when all are busy. How often that is at load rho falls with the number of
// ranks; this is Sakasegawa's approximation of the queue before n servers.
func omega(rho float64, n int) float64 {
	if rho = min(rho, rhoCap); rho <= 0 {
		return 1
	}
	return 1 + math.Pow(rho, math.Sqrt(2*float64(n+1)))/(1-rho)
}

// maxOverdue bounds how much a first token that does not come counts as backlog.
const maxOverdue = time.Minute

// reported adds the engine's report: requests in its queue that this router has not sent are
// work too: another router's, or unstreamed ones of which assumed count as prefilled by their predicted time alone.
func (e *evaluator) reported(rep *Report, cand *decision.Candidate, rk *rank, assumed int, now time.Time) {
	if e.reports == nil || !e.reports.Report(cand.Slot, now, int(cand.Waiting)+assumed, rep) {
		return
	}
	cand.EngineWaiting, cand.KVUsage = int32(rep.Waiting), float32(rep.KVUsage)
	rk.counters.See(rk.speed, &speed.Report{At: rep.At, Queued: rep.Queued, Foreign: rep.Foreign, Uncached: rep.Uncached, PrefillSeconds: rep.PrefillSeconds, Computed: rep.Computed},
		speed.Decodes{Sequences: int(cand.Requests) - int(cand.Waiting)})
	if rep.Blocks > 0 {
		cand.Blocks = uint32(rep.Blocks)
	}
	if extra := rep.Waiting - int(cand.Waiting); extra > 0 {
		cand.Backlog += float64(extra) * rk.work.get()
	}
}

// crowding is the predicted wait for KV memory: blocks beyond the rank's capacity become free at
// the rate at which requests leave.
func (e *evaluator) crowding(cand *decision.Candidate, d *decision.Decision) float64 {
	if cand.Blocks == 0 {
		return 0
	}
	tokens := d.PromptTokens - int(cand.GPU) + d.ExpectedOutput
	need := cand.DecodeBlocks + float64(tokens)/float64(cand.BlockSize)
	excess := need - float64(cand.Blocks)
	if excess <= 0 {
		return 0
	}
	return excess / float64(cand.Blocks) * e.residence.get()
}
