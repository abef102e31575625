package evaluate

import (
	"math"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
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

// Loads reads the bookings on each rank, and how fast it is. It may be called again for the
// same candidates when a booking lost a race.
func (e *Evaluator) Loads(s *Evaluation, req *ask.Request, now time.Time, planned map[replica.Slot]float64) {
	d := &s.Decision
	set := e.Settings.Or(req.Settings)
	limit := set.Config.MaxRequestsPerRank
	if o := req.Options.MaxRequests; o > 0 && (limit == 0 || o < limit) {
		limit = o
	}
	var busy, rate float64
	usable := 0
	g := gauge{views: e.Book.ViewAll(now), now: e.Clock.Since(now)}
	counted := answers.Counted(d.ExpectedOutput)
	decodes, outputs := decodeWeight*float64(counted), float64(min(counted, answers.Usual))
	calm := e.calm(d, counted)
	s.Versions = sized(s.Versions, len(d.Candidates))
	for i := range d.Candidates {
		if i%ahead == 0 && len(d.Candidates) > alreadyNear {
			s.Readings.approach(&g, d.Candidates, s.ranks, i)
		}
		cand, rk := &d.Candidates[i], s.ranks[i]
		at := s.Readings.reading(&g, cand.Slot, rk)
		l := &at.load
		s.Versions[i] = l.Version
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
		if r := s.Owner(i); rk.Known.Load() != r {
			e.Ranks.Update(rk, r)
		}
		m := rk.Model.Load()
		cand.TokenTime, cand.Bend, cand.Overhead = m.Token*e.Bias, m.Bend, m.Overhead
		cand.Spread, cand.Speed = m.Spread, m.Source
		cand.StepTime = m.Step(l.InFlight, l.ContextTokens)
		cand.Decode = decodes * (cand.StepTime - m.Base)
		cand.Backlog = 0
		if l.Prefilling > 0 {
			cand.Backlog = l.PrefillTime.Seconds() + min(l.Overdue, maxOverdue).Seconds()/2
		}
		cand.Planned = planned[cand.Slot] // a nil map has none
		cand.Drag, cand.Suspicions = 0, 0 // of an earlier reading
		if cand.CPU|cand.Disk != 0 {
			cand.Loading = rk.Tiers.Loading(&cand.Overlap, cand.Named, g.now)
		}
		conducted(cand, rk, outputs, now)
		e.reported(&s.Readings.report, cand, rk, l.Assumed, now)
		if s.Calm && l.InFlight > l.Prefilling {
			cand.Backlog += calm.time(d, cand, l, rk.Work.Get())
		}
		full := s.Pool.Ranks[i].Budget * cand.TokenTime
		cand.Slowdown = cand.StepTime / full
		cand.FullStep = full + cand.StepTime
		cand.Crowding = e.crowding(cand, d, l)
		if cand.Veto == decision.VetoNone {
			cand.Busy, cand.Revisits = at.busy, at.Revisits
			busy += cand.Busy
			rate += 1 / cand.TokenTime
			usable++
		}
	}
	e.adapt(s, now)
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
func (e *Evaluator) reported(rep *reports.Report, cand *decision.Candidate, rk *rank.Rank, assumed int, now time.Time) {
	if e.Reports == nil || !e.Reports.Report(cand.Slot, now, int(cand.Waiting)+assumed, rep) {
		return
	}
	cand.EngineWaiting, cand.KVUsage = int32(rep.Waiting), float32(rep.KVUsage)
	rk.Counters.See(rk.Speed, &speed.Report{At: rep.At, Queued: rep.Queued, Foreign: rep.Foreign, Uncached: rep.Uncached, PrefillSeconds: rep.PrefillSeconds, Computed: rep.Computed},
		speed.Decodes{Sequences: int(cand.Requests) - int(cand.Waiting)})
	if rep.Fetches {
		rk.Fetches.Counted(rep.Fetched, rep.At, rep.Foreign >= 1)
	}
	if rep.Blocks > 0 {
		cand.Blocks = uint32(rep.Blocks)
	}
	if extra := rep.Waiting - int(cand.Waiting); extra > 0 {
		cand.Backlog += float64(extra) * rk.Work.Get()
	}
}
