package evaluate_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/booking"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/leases"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/liveness"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// plainLook is look without what makes it quick: it asks each part about each rank, one by one, and remembers nothing. d is what
// look made of the request; the seed, the turn and what does not depend on ranks are taken from it.
func (z *zoo) plainLook(e *evaluate.Evaluator, d *decision.Decision, req *ask.Request, of *evaluate.Model, now time.Time, planned map[replica.Slot]float64) *decision.Decision {
	out := *d
	out.Candidates, out.Load, out.Omega = nil, 0, 1
	f := selector.Filter{
		Model: cmp.Or(req.Served, req.Model), Excluded: req.Exclude, Denied: req.Options.Denied, Allowed: req.Options.Allowed,
		Pinned: req.Options.Pinned, PinnedRank: req.Options.PinnedRank, MinRank: req.Options.MinRank, MaxRank: req.Options.MaxRank,
		Mute: layout.MostMute(req.Replicas, now), PromptTokens: req.Longest,
	}
	if req.Holder != "" {
		f.Pinned, f.PinnedRank, f.Draining = req.Holder, -1, true
	}
	var usable []replica.ID
	for _, r := range req.Replicas {
		if f.Replica(r) == decision.VetoNone {
			usable = append(usable, r.ID)
		}
	}
	barred := e.Gate.Bar(nil, usable, req.Avoid, len(req.Exclude))
	var owners []*replica.Replica
	for _, r := range req.Replicas {
		for index, slot := range r.Slots {
			veto := f.Replica(r)
			if veto == decision.VetoNone && slices.Contains(barred, r.ID) {
				veto = decision.VetoExcluded
			}
			if veto == decision.VetoNone {
				veto = f.Rank(index)
			}
			owners = append(owners, r)
			out.Candidates = append(out.Candidates, decision.Candidate{
				RankID:   decision.RankID{Replica: r.ID, Slot: slot, Rank: uint16(index)},
				Veto:     veto,
				Overlap:  decision.Overlap{Feed: e.Index.State(slot), BlockSize: uint32(cmp.Or(e.Index.BlockSize(slot), r.BlockSize, layout.DefaultBlock))},
				RankLoad: decision.RankLoad{Blocks: uint32(r.Blocks)},
			})
		}
	}
	plainTooLong(out.Candidates, owners, req, f.Model)
	plainStalls(e, out.Candidates, now)
	plainOverlap(e, &out, req)
	z.plainMemory(e, &out, req)
	plainLoads(e, &out, owners, req, now, planned)
	return &out
}

func plainTooLong(cands []decision.Candidate, owners []*replica.Replica, req *ask.Request, model string) {
	longest := 0
	for i := range cands {
		context := layout.ContextOf(owners[i], model)
		switch cands[i].Veto {
		case decision.VetoNone:
			return
		case decision.VetoState, decision.VetoDraining, decision.VetoExcluded:
			if context == 0 || context >= req.Longest {
				return
			}
		case decision.VetoContext:
			longest = max(longest, context)
		default:
		}
	}
	for i := range cands {
		if longest > 0 && cands[i].Veto == decision.VetoContext && layout.ContextOf(owners[i], model) == longest {
			cands[i].Veto = decision.VetoNone
		}
	}
}

func plainStalls(e *evaluate.Evaluator, cands []decision.Candidate, now time.Time) {
	avoided := func(cand *decision.Candidate) bool {
		r := e.Ranks.At(cand.Slot)
		return r != nil && r.Liveness.Avoided(now)
	}
	left := 0
	for i := range cands {
		if cands[i].Veto == decision.VetoNone && !avoided(&cands[i]) {
			left++
		}
	}
	for i := range cands {
		if cand := &cands[i]; left > 0 && cand.Veto == decision.VetoNone && avoided(cand) {
			cand.Veto, cand.Silent = decision.VetoStalled, e.Ranks.At(cand.Slot).Liveness.Silent().Seconds()
		}
	}
}

func plainOverlap(e *evaluate.Evaluator, d *decision.Decision, req *ask.Request) {
	if req.Hashes == nil {
		return
	}
	found := map[int][]kvindex.Overlap{}
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		size := int(cand.BlockSize)
		if found[size] == nil {
			found[size] = append(e.Index.Match(nil, req.Hashes(size)), kvindex.Overlap{Slot: replica.NoSlot})
		}
		for _, o := range found[size] {
			if o.Slot != cand.Slot {
				continue
			}
			cand.GPU, cand.CPU, cand.Disk = o.GPU*uint32(size), o.CPU*uint32(size), o.Disk*uint32(size)
			if req.Unread {
				cand.GPU, cand.CPU, cand.Disk = 0, 0, 0
			}
			if !req.Estimated && req.PromptTokens > 0 {
				cand.Cut(e.Index.Reach(o.Slot, req.PromptTokens) / size * size)
			}
			cand.Cut(d.PromptTokens)
		}
	}
}

func (z *zoo) plainMemory(e *evaluate.Evaluator, d *decision.Decision, req *ask.Request) {
	var places []replica.Slot
	if d.Policy == decision.ConsistentHash {
		places = selector.NewRing(e.Memory.Ring, req.Replicas).Walk(nil, cmp.Or(req.Session, req.ID+"/0"))
	}
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		switch d.Policy {
		case decision.RoundRobin:
		case decision.ConsistentHash:
			cand.Place = uint32(1 + slices.Index(places, cand.Slot))
		case decision.PrefixAffinity:
			if req.Text == "" {
				break
			}
			z.texts().Match(req.Text, func(slot replica.Slot, chars int) {
				if slot == cand.Slot {
					cand.Chars = uint32(chars)
				}
			})
			cand.Held = uint32(z.texts().Size(cand.Slot))
		default:
			last, ok := z.last[req.Session]
			cand.Session = req.Session != "" && ok && last == cand.Slot
		}
	}
}

func plainLoads(e *evaluate.Evaluator, d *decision.Decision, owners []*replica.Replica, req *ask.Request, now time.Time, planned map[replica.Slot]float64) {
	limit := e.Settings.Or(req.Settings).Config.MaxRequestsPerRank
	if o := req.Options.MaxRequests; o > 0 && (limit == 0 || o < limit) {
		limit = o
	}
	var busy, rate float64
	usable := 0
	for i := range d.Candidates {
		cand := &d.Candidates[i]
		l, rk := e.Book.View(cand.Slot, now), e.Ranks.At(cand.Slot)
		cand.Requests, cand.Waiting = uint32(l.InFlight), uint32(l.Prefilling)
		cand.QueuedTokens, cand.DecodeBlocks = uint32(max(0, l.PrefillTokens)), l.DecodeBlocks
		cand.EngineWaiting, cand.KVUsage = -1, -1
		if cand.Veto == decision.VetoNone && limit > 0 && l.InFlight >= limit {
			cand.Veto = decision.VetoCap
		}
		if rk == nil {
			continue
		}
		m := rk.Speed.Model()
		cand.TokenTime, cand.Bend, cand.Overhead, cand.Spread, cand.Speed = m.Token*e.Bias, m.Bend, m.Overhead, m.Spread, m.Source
		cand.StepTime = m.Step(l.InFlight, l.ContextTokens)
		cand.Decode = evaluate.DecodeWeight * float64(answers.Counted(d.ExpectedOutput)) * (cand.StepTime - m.Base)
		cand.Backlog = l.PrefillTime.Seconds() + min(l.Overdue, evaluate.MaxOverdue).Seconds()/2
		cand.Planned = planned[cand.Slot]
		var rep reports.Report
		if e.Reports.Report(cand.Slot, now, l.Prefilling, &rep) {
			cand.EngineWaiting, cand.KVUsage = int32(rep.Waiting), float32(rep.KVUsage)
			if rep.Blocks > 0 {
				cand.Blocks = uint32(rep.Blocks)
			}
			cand.Backlog += float64(max(0, rep.Waiting-l.Prefilling)) * rk.Work.Get()
		}
		if d.Policy == decision.PredictedTTFT && (d.Objective == decision.ObjectiveCompletion || req.Unstreamed && d.Objective == decision.ObjectiveAnswer) {
			cand.Backlog += e.Undisturbed(d, cand, &l, rk.Work.Get())
		}
		budget := float64(cmp.Or(owners[i].MaxBatchedTokens, layout.DefaultBudget))
		cand.Slowdown = cand.StepTime / (budget * cand.TokenTime)
		cand.FullStep = budget*cand.TokenTime + cand.StepTime
		cand.Crowding = e.CrowdingOf(cand, d, &l)
		cand.Loading = rk.Tiers.Loading(&cand.Overlap, cand.Named, e.Clock.Since(now))
		evaluate.Conducted(cand, rk, float64(min(answers.Counted(d.ExpectedOutput), answers.Usual)), now)
		if cand.Veto != decision.VetoNone {
			continue
		}
		cand.Busy = rk.Lately.Read(e.Clock.Since(now), &cand.Revisits)
		busy += cand.Busy
		rate += 1 / cand.TokenTime
		usable++
	}
	if usable > 0 {
		d.Load, d.Rate = busy/float64(usable), rate/float64(usable)
		d.Omega = evaluate.OmegaOf(d.Load, usable)
	}
}

// zoo is a random fleet with a random history.
type zoo struct {
	*booking.Booker
	model    *evaluate.Model
	r        *rand.Rand
	now      time.Time
	index    *kvindex.Index
	book     *load.Book
	replicas []*replica.Replica
	reports  map[replica.Slot]reports.Report
	open     map[replica.ID]bool // breakers
	flight   []*booking.Choice
	asked    int
	// last has the slot that served each session last, tree the texts of each rank from the first request on that asked for them.
	last map[string]replica.Slot
	tree *selector.Tree
}

// texts are the texts of the ranks, from now on.
func (z *zoo) texts() *selector.Tree {
	if z.tree == nil {
		z.tree = selector.NewTree(z.Memory.Tree)
	}
	return z.tree
}

// zooGate bars the replicas that are open, and those to avoid.
type zooGate struct{ *zoo }

func (g zooGate) Shut() bool { return len(g.open) > 0 }

func (g zooGate) Bar(barred, usable, avoid []replica.ID, tried int) []replica.ID {
	avoid = slices.Clone(avoid)
	for id, open := range g.open {
		if open {
			avoid = append(avoid, id)
		}
	}
	return evaluate.NoGate{}.Bar(barred, usable, avoid, tried)
}

// zooReports are the engines' reports.
type zooReports map[replica.Slot]reports.Report

func (z zooReports) Report(slot replica.Slot, _ time.Time, _ int, to *reports.Report) bool {
	rep, ok := z[slot]
	*to = rep
	return ok
}

// nobody waits.
type nobody struct{}

func (nobody) Changed()            {}
func (nobody) Freed(replica.Slot)  {}
func (nobody) Landed(replica.Slot) {}

// variable is a clock that a test sets.
type variable time.Time

func (v *variable) Now() time.Time { return time.Time(*v) }

func newZoo(r *rand.Rand, ranks int) *zoo {
	z := &zoo{r: r, now: time.Unix(1_000_000, 0), reports: map[replica.Slot]reports.Report{}, open: map[replica.ID]bool{}, last: map[string]replica.Slot{}}
	icfg := kvindex.DefaultConfig()
	icfg.MaxRanks = max(icfg.MaxRanks, ranks+8)
	z.index = kvindex.New(icfg, kvindex.Params{})
	z.book = load.New(load.DefaultConfig(), load.Params{Scope: scope.Scope{}.At((*variable)(&z.now))})
	cfg := settings.DefaultConfig()
	if r.IntN(3) == 0 {
		cfg.MaxRequestsPerRank = 1 + r.IntN(4)
	}
	cfg.Shadow = one(r, append(decision.Policies(), "", "")...)
	cfg.Objective = one(r, decision.Objectives()...)
	scale, dice, inForce := clock.New(z.book.Clock()), &evaluate.Dice{}, &settings.Current{}
	measured, predictions := &booking.Metrics{}, &follow.Predictions{}
	set := instruments.Declare(nil, "test", measured, predictions)
	dice.Seed.Store(1)
	inForce.Store(settings.New(cfg))
	table, queue := rank.NewTable(scale), holdqueue.New(cfg.Queue, holdqueue.Params{})
	var unreachable atomic.Int64
	z.Booker = &booking.Booker{
		Evaluator: &evaluate.Evaluator{
			Clock: scale, Settings: inForce, Ranks: table, Index: z.index, Book: z.book, Reports: zooReports(z.reports), Gate: zooGate{z}, Queue: queue,
			Memory:     &past.Memory{Clock: scale, Settings: inForce, Index: z.index, Ring: cfg.Ring, Tree: cfg.Tree, Sessions: past.NewSessions(&past.Turns{}), Affinity: past.NewAffinity(set, cfg.Ring)},
			Comparison: &compare.Comparison{Ranks: table, Book: z.book, Clock: scale, Waiting: nobody{}, Log: slog.New(slog.DiscardHandler), Suspicions: &compare.Suspicions{}},
			Residence:  answers.NewResidence(), Lanes: &transfer.Lanes{}, Copies: &transfer.Copies{}, Dice: dice, Contexts: programs.NewRanks(), Bias: 1, Unreachable: &unreachable,
		},
		Leases: leases.New(z.book), Waiters: nobody{}, Metrics: measured, Withdrawn: &follow.Withdrawn{},
	}
	z.Learning = follow.Learning{Book: z.book, Reports: zooReports(z.reports), Clock: scale, Log: slog.New(slog.DiscardHandler), Predictions: predictions}
	z.model = z.NewModel("m")
	for slot := 0; slot < ranks; {
		rep := &replica.Replica{
			ID: replica.ID(fmt.Sprint("r", slot)), State: replica.StateReady, Since: z.now, Blocks: r.IntN(3) * 500,
			Models: []replica.Model{{ID: "m", MaxLen: r.IntN(3) * 4000}}, BlockSize: one(r, 0, 16, 32), MaxBatchedTokens: one(r, 0, 1024, 8192),
		}
		for range min(1+r.IntN(4)/3*7, ranks-slot) {
			rep.Slots = append(rep.Slots, replica.Slot(slot))
			slot++
		}
		z.replicas = append(z.replicas, rep)
		for i, slot := range rep.Slots {
			if r.IntN(30) == 0 {
				continue // not everything is known of it yet
			}
			z.book.AddRank(slot)
			z.Ranks.AddRank(slot, rep, i)
			_ = z.index.AddRank(slot, kvindex.RankInfo{BlockSize: rep.BlockSize, Capacity: 2000}) // slots are new
			z.index.SetState(slot, one(r, kvblock.FeedExact, kvblock.FeedExact, kvblock.FeedCold, kvblock.FeedNone))
		}
	}
	return z
}

func one[E any](r *rand.Rand, list ...E) E { return list[r.IntN(len(list))] }

// prompt makes a prompt of n tokens; prompts of equal numbers begin alike.
func prompt(number, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(number*1_000_003 + i)
	}
	return ids
}

// disturb changes something of the fleet.
func (z *zoo) disturb() {
	r := z.r
	at := r.IntN(len(z.replicas))
	slot := one(r, z.replicas[at].Slots...)
	if rk := z.Ranks.At(slot); rk != nil && r.IntN(4) == 0 {
		of := one(r, rk.Tiers.Host, rk.Tiers.Store)
		of.Found(r.IntN(100), 100)
		of.Learn(1+r.IntN(5000), r.Float64())
	}
	switch r.IntN(9) {
	case 0: // the registry publishes a replica anew, in a list of its own
		changed := *z.replicas[at]
		changed.State = one(r, replica.StateReady, replica.StateReady, replica.StateReady, replica.StateDraining, replica.StateUnhealthy)
		changed.Mute, changed.Since = changed.State == replica.StateUnhealthy && r.IntN(2) == 0, z.now
		changed.Blocks, changed.MaxBatchedTokens = r.IntN(3)*500, one(r, 0, 1024, 8192)
		z.replicas = slices.Clone(z.replicas)
		z.replicas[at] = &changed
	case 1:
		size := one(r, 16, 16, 32)
		ids := prompt(r.IntN(4), size*(1+r.IntN(60)))
		names := make([]kvblock.EngineHash, len(ids)/size)
		for i := range names {
			names[i] = kvblock.EngineHash(uint64(ids[0])<<20 + uint64(i+1)<<8 + uint64(size))
		}
		z.index.Store(slot, &kvblock.Stored{Hashes: names, Tokens: ids, BlockSize: size, Tier: one(r, kvblock.TierGPU, kvblock.TierGPU, kvblock.TierCPU, kvblock.TierDisk)})
	case 2:
		z.reports[slot] = reports.Report{Waiting: r.IntN(5), KVUsage: r.Float64(), Blocks: r.IntN(2) * 700, Foreign: r.Float64() * 2, At: z.now, Queued: r.IntN(3)}
	case 3:
		z.open[z.replicas[at].ID] = r.IntN(3) == 0
	case 4:
		if rk := z.Ranks.At(slot); rk != nil {
			v := liveness.Vitals{}
			if r.IntN(2) == 0 {
				v.Asked, v.Late = z.now.Add(-time.Minute), time.Minute
			}
			rk.Liveness.Look(&v, liveness.Round{Now: z.now, Passed: time.Second, After: time.Second, Elsewhere: z.now})
		}
	case 5:
		z.index.SetState(slot, one(r, kvblock.FeedExact, kvblock.FeedNone))
	case 6:
		if r.IntN(4) == 0 {
			z.Ranks.Remove(slot)
			z.model.Forget(slot)
			z.Memory.Sessions.Forget(slot)
			maps.DeleteFunc(z.last, func(_ string, at replica.Slot) bool { return at == slot })
			if z.tree != nil {
				z.tree.Remove(slot)
			}
			z.book.RemoveRank(slot)
			z.index.RemoveRank(slot)
		}
	default:
		z.now = z.now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
	}
	for len(z.flight) > 3*len(z.replicas) || len(z.flight) > 0 && r.IntN(3) == 0 {
		choice := z.flight[0]
		z.flight = z.flight[1:]
		choice.FirstToken()
		choice.Progress(r.IntN(200))
		choice.Release(ask.ResultOf(decision.EndCompleted))
	}
	for _, choice := range z.flight {
		if r.IntN(8) == 0 {
			choice.FirstToken()
		}
	}
}

// request makes a random request.
func (z *zoo) request() *ask.Request {
	r := z.r
	z.asked++
	number, n := r.IntN(4), 1+r.IntN(2000)
	req := &ask.Request{
		Request: decision.Request{ID: fmt.Sprint("q", z.asked), Model: "m"},
		Pool:    ask.Pool{Replicas: z.replicas},
		Reply:   ask.Reply{ExpectedOutput: r.IntN(400), Unstreamed: r.IntN(4) == 0},
		Prompt: ask.Prompt{
			PromptTokens: n, Estimated: r.IntN(5) == 0, Unread: r.IntN(20) == 0, Text: one(r, "", "the same words", "the same beginning", "other words"),
		},
		Caller: ask.Caller{Session: one(r, "", "", "a", "b", "c")},
		Terms:  ask.Terms{NoQueue: true},
	}
	req.Options.Policy = one(r, append(decision.Policies(), decision.PredictedTTFT, decision.PredictedTTFT, "")...)
	if r.IntN(8) > 0 {
		ids := prompt(number, n)
		req.Hashes = func(size int) []blockhash.Hash { return blockhash.Chain(nil, ids, size, blockhash.Namespace{}) }
	}
	named := func() replica.ID { return one(r, z.replicas...).ID }
	switch o := &req.Options; r.IntN(12) {
	case 0:
		o.Weights = map[string]float64{"temperature": 0.5}
	case 1:
		req.Exclude = []replica.ID{named(), named()}
	case 2:
		o.Denied, o.Allowed = []replica.ID{named()}, []replica.ID{named(), named(), named()}
	case 3:
		o.Pinned, o.PinnedRank = named(), r.IntN(3)-1
	case 4:
		o.MinRank, o.MaxRank = r.IntN(2), 1+r.IntN(3)
	case 5:
		o.MaxRequests = 1 + r.IntN(3)
	case 6:
		req.Longest = r.IntN(10_000)
	case 7:
		req.Avoid = []replica.ID{named(), named()}
	case 8:
		req.Holder = named()
	case 9:
		o.Targets = decision.Targets{TTFT: time.Duration(1+r.IntN(1000)) * time.Millisecond, TPOT: 20 * time.Millisecond}
	}
	return req
}

// What look keeps between requests and reads in bulk is what a look at each rank by itself finds, to the last bit, and so the pick
// is the same: with all policies, vetoes, options, sessions and planned work.
func TestTheQuickLookSeesWhatAPlainOneDoes(t *testing.T) {
	for seed, ranks := range []int{3, 20, 70, 130, 300} {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		z := newZoo(r, ranks)
		for step := range 200 {
			z.disturb()
			req := z.request()
			of := z.model
			var planned map[replica.Slot]float64
			if r.IntN(3) == 0 {
				planned = map[replica.Slot]float64{replica.Slot(r.IntN(10)): r.Float64()}
			}
			s := z.Borrow(time.Time{})
			if s.Readings.Visit = 0; planned != nil {
				s.Readings.Visit = uint64(step + 1)
			}
			if err := z.Evaluate(s, req, of, z.now, planned); err != nil {
				t.Fatal(err)
			}
			plain := z.plainLook(z.Evaluator, &s.Decision, req, of, z.now, planned)
			for i := range plain.Candidates {
				if got, want := s.Decision.Candidates[i], plain.Candidates[i]; got != want {
					t.Fatalf("seed %d, step %d, %s: candidate %d is\n%+v, want\n%+v", seed, step, s.Decision.Policy, i, got, want)
				}
			}
			if !reflect.DeepEqual(s.Decision, *plain) {
				t.Fatalf("seed %d, step %d: the decision is\n%+v, want\n%+v", seed, step, s.Decision, *plain)
			}
			selector.Choose(&s.Decision)
			selector.Choose(plain)
			if s.Decision.Chosen != plain.Chosen || s.Decision.Margin != plain.Margin || s.Decision.Reason != plain.Reason {
				t.Fatalf("seed %d, step %d, %s: chosen %d by %v for %q, want %d by %v for %q", seed, step, s.Decision.Policy,
					s.Decision.Chosen, s.Decision.Margin, s.Decision.Reason, plain.Chosen, plain.Margin, plain.Reason)
			}
			checkRecord(t, z.Recorded(s, req, z.now), &s.Decision)
			s.Readings.Visit = 0
			z.GiveBack(s)
			if choice, err := z.begunAt(req); err == nil {
				z.flight = append(z.flight, choice)
			}
		}
	}
}

// begunAt books the request.
func (z *zoo) begunAt(req *ask.Request) (*booking.Choice, error) {
	s := z.Borrow(time.Time{})
	defer z.GiveBack(s)
	if err := z.Evaluate(s, req, z.model, z.now, nil); err != nil {
		return nil, err
	}
	s.AvoidFull()
	s.Choose()
	if err := z.Reach(&s.Decision, req); err != nil {
		return nil, err
	}
	choice, err := z.Commit(s, req, z.model, z.now, booking.Wait{})
	if err == nil && !choice.Decision.TooLong {
		if req.Session != "" {
			z.last[req.Session] = choice.Slot
		}
		if z.tree != nil && req.Text != "" {
			z.tree.Insert(choice.Slot, req.Text, z.now)
		}
	}
	return choice, err
}

// checkRecord holds a record against the decision with all candidates.
func checkRecord(t *testing.T, got, all *decision.Decision) {
	t.Helper()
	list := got.List()
	if len(list)+got.Others+got.VetoedOthers != len(all.Candidates) {
		t.Fatalf("%d candidates are listed and %d not, of %d", len(list), got.Others+got.VetoedOthers, len(all.Candidates))
	}
	if len(all.Candidates) <= evaluate.WholeUpTo && got.Others+got.VetoedOthers != 0 {
		t.Fatalf("%d of %d candidates are not listed", got.Others+got.VetoedOthers, len(all.Candidates))
	}
	if (got.Pick() == nil) != (all.Pick() == nil) || got.Pick() != nil && *got.Pick() != *all.Pick() {
		t.Fatalf("the pick is %+v, want %+v", got.Pick(), all.Pick())
	}
	listed := map[replica.Slot]bool{}
	vetoes := map[decision.Veto]bool{}
	var dearest, least float64
	var fastest, slowest float64
	var most, some uint32
	usable, other, vetoed := 0, false, 0
	for i := range list {
		c := &list[i]
		listed[c.Slot], vetoes[c.Veto] = true, true
		most = max(most, c.Overlap.Tokens())
		if c.Veto == decision.VetoNone {
			usable++
			dearest = max(dearest, c.Cost)
			if c.TTFT > 0 && (fastest == 0 || c.TTFT < fastest) {
				fastest = c.TTFT
			}
			other = other || got.Pick() != nil && c.Replica != got.Pick().Replica
		}
	}
	hasOther := false
	for i := range all.Candidates {
		c := &all.Candidates[i]
		hasOther = hasOther || all.Pick() != nil && c.Veto == decision.VetoNone && c.Replica != all.Pick().Replica
		if listed[c.Slot] {
			continue
		}
		some = max(some, c.Overlap.Tokens())
		switch {
		case !vetoes[c.Veto]:
			t.Fatalf("no candidate with the veto %q is listed", c.Veto)
		case c.Veto != decision.VetoNone:
			vetoed++
		case c.Session || c.Place > 0:
			t.Fatal("a rank that the policy remembers is not listed")
		default:
			if least == 0 || c.Cost < least {
				least = c.Cost
			}
			if c.TTFT > 0 && (slowest == 0 || c.TTFT < slowest) {
				slowest = c.TTFT
			}
			if usable < evaluate.CheapestListed {
				t.Fatalf("only %d that could serve are listed", usable)
			}
		}
	}
	if other != hasOther || some > most || slowest != 0 && slowest < fastest || vetoed != got.VetoedOthers {
		t.Fatalf("another replica %v, want %v; overlap %d, unlisted %d; fastest %v, unlisted %v; %d vetoed, want %d", other, hasOther, most, some, fastest, slowest, got.VetoedOthers, vetoed)
	}
	if cheaper := cheaperThan(got, least); least != 0 && cheaper < evaluate.CheapestListed {
		t.Fatalf("a rank that costs %v is not listed, and only %d cheaper ones are", least, cheaper)
	}
}

// cheaperThan counts the candidates that cost at most cost.
func cheaperThan(d *decision.Decision, cost float64) (n int) {
	for _, c := range d.List() {
		if c.Veto == decision.VetoNone && c.Cost <= cost {
			n++
		}
	}
	return n
}
