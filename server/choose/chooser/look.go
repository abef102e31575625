package chooser

import (
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// scratch is the memory of one look, reused.
type scratch struct {
	d        decision.Decision
	versions []uint64 // of each candidate's load when it was read
	pool     *pool    // each candidate's rank in it has the candidate's index
	ranks    []*rank  // of each candidate; nil for one that is not known
	overlaps []kvindex.Overlap
	known    []kvindex.Overlap // used instead of asking the index, when not nil
	slots    []replica.Slot
	sizes    []int // distinct block sizes of the pool
	ids      []replica.ID
	shadow   []decision.Candidate
	listing  listing
	packer   decision.Packer
	// seen is what a visit of the hold queue read of the ranks, by slot; an entry of an earlier visit
	// is not valid. visit is 0 outside of a visit.
	seen  []reading
	visit uint64
	once  reading // the last one outside of a visit
	near  uint64  // what approach has read, which has no meaning
	// report is the engine's of the candidate whose load is read.
	report Report
	// held is set when the request may wait in the hold queue; since is when the offered request began to wait (zero: it has not).
	held  bool
	whole bool // nothing but the end of the answer counts, for the requests that wait, too
	since time.Time
	// call is the request's in the ledger of programs, memory that of the ranks, full the ranks without memory for it.
	call   programs.Call
	memory []programs.Rank
	full   []replica.Slot
}

// look fills s.d with all that is known for req at now: one candidate per rank. planned is
// predicted work that waits in the router for each rank; it may be nil.
func (c *Chooser) look(s *scratch, req *Request, ln *line, now time.Time, planned map[replica.Slot]float64) error {
	d := &s.d
	set := c.settingsOf(req)
	t := set.of(req.Model)
	*d = decision.Decision{
		Request: decision.Request{
			ID: req.ID, Attempt: req.Attempt, RequestID: req.RequestID, Tenant: req.Tenant, Model: req.Model, Adapter: req.Adapter, TraceID: req.TraceID, SpanID: req.SpanID,
		},
		At: now, DryRun: req.DryRun,
		Rule:     decision.Rule{Policy: t.policy, Params: t.params, Pinned: req.Options.Pinned != "" || req.Holder != "", Seed: c.seed.Add(0x9e3779b97f4a7c15)},
		Prompt:   decision.Prompt{PromptTokens: req.PromptTokens, Estimated: req.Estimated, Keyless: req.Hashes == nil || req.Keyless, ExpectedOutput: ln.lengths.expected(req)},
		Deciders: decision.Deciders{AskedBy: req.AskedBy, Alone: req.Alone},
		Ranks:    decision.Ranks{Candidates: d.Candidates[:0], Chosen: -1},
		Fleet:    decision.Fleet{Returning: usualReturn},
	}
	if req.SessionReturn < 0 {
		d.Returning = 0
	}
	if p := req.Options.Policy; p != "" {
		d.Policy = p
	}
	if d.Targets = req.Options.Targets; d.Policy == decision.PredictedTTFT {
		d.Objective, d.Targets = t.objective, d.Targets.Or(t.targets)
		if req.Options.Targets.Set() {
			d.Objective = decision.ObjectiveSLO // what the caller asks for
		}
		if !s.since.IsZero() {
			d.Waited = max(0, now.Sub(s.since))
		}
	}
	if len(req.Options.Weights) > 0 {
		params, err := selector.Apply(t.params, req.Options.Weights)
		if err != nil {
			return err
		}
		d.Params = params
	}
	if s.whole = wholly(req, d); s.whole {
		d.Params.Interference *= wholeInterference
		s.whole = ln.streams.Load() == 0 // those would wait, too
	}
	c.judgeUnlessRun(now)
	s.held = set.holdAbove > 0 && d.Policy == decision.PredictedTTFT && !req.DryRun && !req.Unbooked && !req.NoQueue
	c.candidates(s, req, ln)
	s.avoidStalled(now)
	matching := c.clock()
	c.overlap(s, req)
	d.Scored = c.clock().Sub(matching)
	c.recall(s, req, ln)
	c.loads(s, req, now, planned)
	return nil
}

// owner is the replica of a candidate.
func (s *scratch) owner(i int) *replica.Replica { return s.pool.replicas[s.pool.ranks[i].owner] }

// sized returns list with n elements, which may have any value.
func sized[E any](list []E, n int) []E { return slices.Grow(list[:0], n)[:n] }
