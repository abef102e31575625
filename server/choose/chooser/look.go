package chooser

import (
	"math"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// scratch is the memory of one look, reused.
type scratch struct {
	d        decision.Decision
	versions []uint64 // of each candidate's load when it was read
	owner    []int32  // each candidate's replica in the request's pool
	bySlot   []int32  // candidate by slot, -1 for none
	overlaps []kvindex.Overlap
	known    []kvindex.Overlap // used instead of asking the index, when not nil
	slots    []replica.Slot
	sizes    []int // distinct block sizes of the pool
	// seen is what a visit of the hold queue read of the ranks, by slot; an entry whose visit is not
	// the one under way means nothing. visit is 0 outside of one.
	seen  []standing
	visit uint64
	// held says that the request may wait in the hold queue, since is when the one on offer began to (zero: it has not).
	held  bool
	since time.Time
}

const (
	// defaultBlock is a rank's block size until it is known.
	defaultBlock = 16
	// decodeWeight is what a second of decoding counts beside a second before the first token: 0.3 for the request's own, and as
	// much for those that decode beside it, whose steps all grow by what its own grow the step. It spreads prompts that many
	// ranks hold, or could: docs/adr/017-whole-answer.md.
	decodeWeight = 0.6
	// rhoCap bounds ω: a full fleet must still be able to spread a prefix.
	rhoCap = 0.9
	// defaultBudget is the tokens per step when the engine does not say.
	defaultBudget = 2048
)

// look fills s.d with all that is known for req at now: one candidate per rank. planned is
// predicted work that waits in the router for each rank; it may be nil.
func (c *Chooser) look(s *scratch, req *Request, ln *line, now time.Time, planned map[replica.Slot]float64) error {
	d := &s.d
	set := c.settingsOf(req)
	t := set.of(req.Model)
	*d = decision.Decision{
		ID: req.ID, Attempt: req.Attempt, RequestID: req.RequestID, Tenant: req.Tenant, At: now, Model: req.Model, Adapter: req.Adapter, Policy: t.policy,
		PromptTokens: req.PromptTokens, Estimated: req.Estimated, Keyless: req.Hashes == nil || req.Keyless, ExpectedOutput: req.ExpectedOutput,
		DryRun: req.DryRun, TraceID: req.TraceID, SpanID: req.SpanID, Candidates: d.Candidates[:0], Chosen: -1, Params: t.params,
		Pinned: req.Options.Pinned != "" || req.Holder != "",
		Seed:   c.seed.Add(0x9e3779b97f4a7c15),
	}
	if p := req.Options.Policy; p != "" {
		d.Policy = p
	}
	if d.Policy == decision.PredictedTTFT {
		d.Objective, d.Targets = t.objective, req.Options.Targets.Or(t.targets)
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
	s.held = set.holdAbove > 0 && d.Policy == decision.PredictedTTFT && !req.DryRun && !req.Unbooked && !req.NoQueue
	c.candidates(s, req)
	c.avoidStalled(d, now)
	matching := c.clock()
	c.overlap(s, req)
	d.Scored = c.clock().Sub(matching)
	c.affinity(s, req, ln)
	c.loads(s, req, now, planned)
	return nil
}

// candidates lists the ranks with their vetoes.
func (c *Chooser) candidates(s *scratch, req *Request) {
	o := &req.Options
	f := selector.Filter{
		Model: req.Served, Excluded: req.Exclude, Denied: o.Denied, Allowed: o.Allowed,
		Pinned: o.Pinned, PinnedRank: o.PinnedRank, MinRank: o.MinRank, MaxRank: o.MaxRank,
	}
	if f.Model == "" {
		f.Model = req.Model
	}
	f.Mute = MostMute(req.Replicas, s.d.At)
	if req.Holder != "" {
		f.Pinned, f.PinnedRank, f.Draining = req.Holder, -1, true
	}
	f.PromptTokens = req.Longest
	d := &s.d
	s.owner = s.owner[:0]
	careful := c.params.Allow != nil && c.anyAllowed(&f, req.Replicas)
	for i, r := range req.Replicas {
		veto := f.Replica(r)
		if veto == decision.VetoNone && careful && !c.params.Allow(r.ID) {
			veto = decision.VetoExcluded
		}
		for index, slot := range r.Slots {
			d.Candidates = append(d.Candidates, decision.Candidate{})
			cand := &d.Candidates[len(d.Candidates)-1]
			cand.Replica, cand.Slot, cand.Rank, cand.Veto = r.ID, slot, uint16(index), veto
			if veto == decision.VetoNone {
				cand.Veto = f.Rank(index)
			}
			cand.Feed = c.params.Index.State(slot)
			block := c.params.Index.BlockSize(slot)
			if block == 0 {
				block = r.BlockSize
			}
			if block == 0 {
				block = defaultBlock
			}
			cand.BlockSize = uint32(block)
			cand.Blocks = uint32(max(0, r.Blocks))
			s.owner = append(s.owner, int32(i))
		}
	}
	c.tooLong(s, req, f.Model)
}

// anyAllowed reports whether some replica that passes the filter has a closed breaker. When none
// has, breakers are not heeded: trying is better than refusing everybody.
func (c *Chooser) anyAllowed(f *selector.Filter, replicas []*replica.Replica) bool {
	for _, r := range replicas {
		if f.Replica(r) == decision.VetoNone && c.params.Allow(r.ID) {
			return true
		}
	}
	return false
}

// overlap asks the index what each rank holds of the prompt.
func (c *Chooser) overlap(s *scratch, req *Request) {
	if req.Hashes == nil {
		return
	}
	d := &s.d
	s.sizes = s.sizes[:0]
	top := replica.Slot(0)
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		top = max(top, cand.Slot)
		if size := int(cand.BlockSize); !contains(s.sizes, size) {
			s.sizes = append(s.sizes, size)
		}
	}
	s.bySlot = s.bySlot[:0]
	for range int(top) + 1 {
		s.bySlot = append(s.bySlot, -1)
	}
	for i := range d.Candidates {
		s.bySlot[d.Candidates[i].Slot] = int32(i)
	}
	for _, size := range s.sizes {
		if s.known != nil && len(s.sizes) == 1 {
			s.overlaps = append(s.overlaps[:0], s.known...)
		} else {
			s.overlaps = c.params.Index.Match(s.overlaps[:0], req.Hashes(size))
		}
		for _, o := range s.overlaps {
			if int(o.Slot) >= len(s.bySlot) || s.bySlot[o.Slot] < 0 {
				continue
			}
			cand := &d.Candidates[s.bySlot[o.Slot]]
			if int(cand.BlockSize) != size {
				continue
			}
			cand.GPU, cand.CPU, cand.Disk = o.GPU*uint32(size), o.CPU*uint32(size), o.Disk*uint32(size)
			if a := &req.Answer; a.Slot == o.Slot && a.Held > a.Known && int(cand.GPU) >= a.Known/size*size {
				cand.GPU = max(cand.GPU, uint32(min(a.Held, c.params.Index.Reach(o.Slot, req.PromptTokens))/size*size))
			}
			if req.Unread {
				cand.GPU, cand.CPU, cand.Disk = 0, 0, 0
			}
			if !req.Estimated && req.PromptTokens > 0 {
				cutTo(cand, c.params.Index.Reach(o.Slot, req.PromptTokens)/size*size)
			}
			d.Clip(cand)
		}
	}
}

// cutTo cuts what a rank holds of the prompt to what its engine can take from there.
func cutTo(cand *decision.Candidate, reach int) {
	left := uint32(reach)
	for _, held := range []*uint32{&cand.GPU, &cand.CPU, &cand.Disk} {
		*held = min(*held, left)
		left -= *held
	}
}

func contains(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}

// affinity fills what the policies with a memory of their own need.
func (c *Chooser) affinity(s *scratch, req *Request, ln *line) {
	d := &s.d
	switch d.Policy {
	case decision.RoundRobin:
		d.Cursor = ln.cursor.Add(1) - 1
	case decision.ConsistentHash:
		key := req.Session
		d.Keyless = key == ""
		if key == "" {
			key = req.ID + "/" + strconv.Itoa(req.Attempt)
		}
		s.slots = c.ringFor(ln, req.Replicas).Walk(s.slots[:0], key)
		for place, slot := range s.slots {
			for i := range d.Candidates {
				if d.Candidates[i].Slot == slot {
					d.Candidates[i].Place = uint32(place + 1)
				}
			}
		}
	case decision.PrefixAffinity:
		if d.PromptChars = len(req.Text); d.PromptChars == 0 {
			break
		}
		tree := c.treeFor(ln)
		tree.Match(req.Text, func(slot replica.Slot, chars int) {
			for i := range d.Candidates {
				if d.Candidates[i].Slot == slot {
					d.Candidates[i].Chars = uint32(chars)
				}
			}
		})
		for i := range d.Candidates {
			d.Candidates[i].Held = uint32(tree.Size(d.Candidates[i].Slot))
		}
	default:
		if req.Session == "" {
			break
		}
		if slot, ok := c.sessions.get(sessionKey{ln, req.Session}); ok {
			for i := range d.Candidates {
				d.Candidates[i].Session = d.Candidates[i].Slot == slot
			}
		}
	}
}

// loads reads what is booked on each rank, and how fast it is. It may be called again for the
// same candidates when a booking lost a race.
func (c *Chooser) loads(s *scratch, req *Request, now time.Time, planned map[replica.Slot]float64) {
	d := &s.d
	set := c.settingsOf(req)
	limit := set.config.MaxRequestsPerRank
	if o := req.Options.MaxRequests; o > 0 && (limit == 0 || o < limit) {
		limit = o
	}
	var busy float64
	usable := 0
	s.versions = s.versions[:0]
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		at := c.standing(s, cand.Slot, now)
		l := &at.load
		s.versions = append(s.versions, l.Version)
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
		rk := at.rank
		if rk == nil {
			continue
		}
		if r := req.Replicas[s.owner[i]]; rk.known.Load() != r {
			c.updateRank(rk, r)
		}
		m := rk.speed.Model()
		cand.TokenTime, cand.Bend, cand.Overhead = m.Token*c.params.PaceBias, m.Bend, m.Overhead
		cand.Spread, cand.Speed = m.Spread, m.Source
		cand.StepTime = m.Step(l.InFlight, l.ContextTokens)
		cand.Decode = decodeWeight * float64(outputs(d.ExpectedOutput)) * (cand.StepTime - m.Base)
		cand.Backlog = l.PrefillTime.Seconds() + min(l.Overdue, maxOverdue).Seconds()/2
		cand.Planned = planned[cand.Slot] // a nil map has none
		c.reported(cand, rk)
		budget := float64(defaultBudget)
		if b := req.Replicas[s.owner[i]].MaxBatchedTokens; b > 0 {
			budget = float64(b)
		}
		cand.Slowdown = cand.StepTime / (budget * cand.TokenTime)
		cand.FullStep = budget*cand.TokenTime + cand.StepTime
		cand.Crowding = c.crowding(cand, d)
		if cand.Veto == decision.VetoNone {
			cand.Busy, cand.Returns, cand.Saved, cand.Residual = at.busy, at.returns, at.saved, at.residual
			busy += cand.Busy
			usable++
		}
	}
	d.Load, d.Omega = 0, 1
	if usable > 0 {
		d.Load = busy / float64(usable)
		d.Omega = omega(d.Load, usable)
	}
}

// outputs is the number of output tokens to reckon with.
func outputs(expected int) int {
	if expected <= 0 || expected > 256 {
		return 256
	}
	return expected
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

// reported blends in what the engine says: requests that it has queued and we have not sent are
// work too (another router's, say).
func (c *Chooser) reported(cand *decision.Candidate, rk *rank) {
	if c.params.Engine == nil {
		return
	}
	rep, ok := c.params.Engine(cand.Slot)
	if !ok {
		return
	}
	cand.EngineWaiting, cand.KVUsage = int32(rep.Waiting), float32(rep.KVUsage)
	rk.counters.See(rk.speed, &speed.Report{At: rep.At, Queued: rep.Queued, Foreign: rep.Foreign, Uncached: rep.Uncached, PrefillSeconds: rep.PrefillSeconds},
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
func (c *Chooser) crowding(cand *decision.Candidate, d *decision.Decision) float64 {
	if cand.Blocks == 0 {
		return 0
	}
	tokens := d.PromptTokens - int(cand.GPU) + d.ExpectedOutput
	need := cand.DecodeBlocks + float64(tokens)/float64(cand.BlockSize)
	excess := need - float64(cand.Blocks)
	if excess <= 0 {
		return 0
	}
	return excess / float64(cand.Blocks) * c.residence.get()
}

// hashesFor returns the prompt's hashes in the chosen rank's block size.
func hashesFor(req *Request, cand *decision.Candidate) []blockhash.Hash {
	if req.Hashes == nil {
		return nil
	}
	return req.Hashes(int(cand.BlockSize))
}

// panicFor is how long replicas that nothing comes back from are used all the same, when they are most of a pool.
const panicFor = time.Minute

// MostMute reports whether most of a pool's replicas became unhealthy lately for the sole reason that nothing came back from
// their probes: rather than all of them, this machine or its network may be at fault, so they stay in use for a while.
func MostMute(replicas []*replica.Replica, now time.Time) bool {
	mute, others := 0, 0
	for _, r := range replicas {
		switch {
		case r.Mute && r.State == replica.StateUnhealthy && now.Sub(r.Since) < panicFor:
			mute++
		case r.State == replica.StateReady, r.State == replica.StateUnhealthy:
			others++
		}
	}
	return mute > others
}
