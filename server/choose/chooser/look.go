package chooser

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// evaluator finds all that is known of the ranks for a request.
type evaluator struct {
	clock      *clock
	settings   *current
	ranks      *rankTable
	index      *kvindex.Index
	book       *load.Book
	reports    Reports // nil: none
	gate       Gate
	queue      *holdqueue.Queue
	memory     *memory
	comparison *comparison
	residence  *residence
	lanes      *transfer.Lanes
	splitAbove *selector.Threshold // nil: by price
	dice       *dice
	// bias multiplies the prefill times that were learned.
	bias float64
	// unreachable counts the requests whose targets no rank can keep.
	unreachable *atomic.Int64
	spare       sync.Pool
}

// remembered is what is remembered of the requests for one model. It is made by newRemembered.
type remembered struct {
	lengths lengths
	trail   trail
	claims  *claims
	pools   pools
	// streams is the number of requests that wait in the hold queue and whose first token counts.
	streams atomic.Int64
}

// newRemembered returns what is remembered of a model before its first request.
func (e *evaluator) newRemembered(model string) *remembered {
	r := &remembered{claims: newClaims()}
	r.trail.start(e.dice.turn(model))
	return r
}

// forget forgets a rank.
func (r *remembered) forget(slot replica.Slot) {
	r.trail.forget(slot)
	r.claims.ledger.Remove(slot)
}

// evaluation is the state of the ranks for one request at one moment. Its memory is reused.
type evaluation struct {
	d        decision.Decision
	versions []uint64 // of each candidate's load when it was read
	pool     *pool    // each candidate's rank in it has the candidate's index
	ranks    []*rank  // of each candidate; nil for one that is not known
	matching matching
	slots    []replica.Slot
	ids      []replica.ID
	shadow   []decision.Candidate
	listing  listing
	packer   decision.Packer
	readings readings
	// held is set when the request may wait in the hold queue; since is when the offered request began to wait (zero: it has not).
	held    bool
	whole   bool // nothing but the end of the answer counts, for the requests that wait, too
	since   time.Time
	program callForMemory
	splitting
}

// borrow returns memory for an evaluation of a request that began to wait at since, zero for one that has not. It goes back with giveBack.
func (e *evaluator) borrow(since time.Time) *evaluation {
	s, ok := e.spare.Get().(*evaluation)
	if !ok {
		s = new(evaluation)
	}
	s.since = since
	return s
}

func (e *evaluator) giveBack(s *evaluation) { e.spare.Put(s) }

// evaluate fills s.d with all that is known for req at now: one candidate per rank. planned is
// predicted work that waits in the router for each rank; it may be nil.
func (e *evaluator) evaluate(s *evaluation, req *Request, of *remembered, now time.Time, planned map[replica.Slot]float64) error {
	t, d := e.settings.or(req.Settings).of(req.Model), &s.d
	s.begin(req, of, now, t)
	s.d.Seed = e.dice.next()
	if len(req.Options.Weights) > 0 {
		params, err := selector.Apply(t.params, req.Options.Weights)
		if err != nil {
			return err
		}
		s.d.Params = params
	}
	if s.whole = wholly(req, &s.d); s.whole {
		s.d.Params.Interference *= wholeInterference
		s.whole = of.streams.Load() == 0 // those would wait, too
	}
	e.comparison.judgeUnlessRun(now)
	s.held = e.settings.or(req.Settings).holdAbove > 0 && s.d.Policy == decision.PredictedTTFT && req.Booking.books() && !req.NoQueue
	e.candidates(s, req, of)
	s.avoidStalled(now)
	matching := e.clock.now()
	e.overlap(s, req)
	s.d.Scored = e.clock.now().Sub(matching)
	s.slots = e.memory.recall(d, s.pool, req, &of.trail, s.slots)
	e.loads(s, req, now, planned)
	s.pairUp(req, e.splitAbove)
	return nil
}

// begin fills the decision from the request and the settings of its model.
func (s *evaluation) begin(req *Request, of *remembered, now time.Time, t *rules) {
	d := &s.d
	*d = decision.Decision{
		Request: req.Request, At: now, DryRun: req.Booking == DryRun,
		Rule:     decision.Rule{Policy: t.policy, Params: t.params, Pinned: req.IsPinned()},
		Prompt:   req.Size(of.lengths.expected(req.Tenant, req.ExpectedOutput, req.OutputLimit)),
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
			d.Objective = decision.ObjectiveSLO // the caller's own targets
		}
		if !s.since.IsZero() {
			d.Waited = max(0, now.Sub(s.since))
		}
	}
}

// owner is the replica of a candidate.
func (s *evaluation) owner(i int) *replica.Replica { return s.pool.replicas[s.pool.ranks[i].owner] }

// sized returns list with n elements, which may have any value.
func sized[E any](list []E, n int) []E { return slices.Grow(list[:0], n)[:n] }
