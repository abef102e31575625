package chooser_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// bed is a chooser over a fleet in which every rank holds prompts, is busy and reports about itself.
type bed struct {
	chooser  *chooser.Chooser
	replicas []*replica.Replica
	prompts  [][]blockhash.Hash
	flight   []*chooser.Choice
	asked    int
	splits   bool
	index    *kvindex.Index
}

// bedPrompt is the length of the prompts in tokens.
const bedPrompt = 2048

func newBed(b *testing.B, ranks int, policy decision.Policy, with ...func(*chooser.Config)) *bed {
	b.Helper()
	icfg := kvindex.DefaultConfig()
	icfg.MaxRanks = max(icfg.MaxRanks, ranks)
	index := kvindex.New(icfg, kvindex.Params{})
	book := load.New(load.DefaultConfig(), load.Params{})
	cfg := chooser.DefaultConfig()
	cfg.Policy = policy
	for _, change := range with {
		change(&cfg)
	}
	x := &bed{flight: make([]*chooser.Choice, 4*ranks), index: index}
	reports := make([]chooser.Report, ranks)
	x.chooser = chooser.New(cfg, chooser.Params{
		Index: index, Book: book, Seed: 1,
		Reports: engineReports(func(slot replica.Slot, _ time.Time, _ int, to *chooser.Report) bool { *to = reports[slot]; return true }),
	})
	for i := range ranks {
		slot := replica.Slot(i)
		reports[i] = chooser.Report{Waiting: i % 3, KVUsage: float64(i%10) / 10, At: time.Now()}
		r := &replica.Replica{ID: replica.ID("r" + strconv.Itoa(i)), State: replica.StateReady, Slots: []replica.Slot{slot}, Models: []replica.Model{{ID: "m"}}, BlockSize: block, Blocks: 40000}
		x.replicas = append(x.replicas, r)
		book.AddRank(slot)
		x.chooser.AddRank(slot, r, 0)
		if err := index.AddRank(slot, kvindex.RankInfo{BlockSize: block, Capacity: r.Blocks}); err != nil {
			b.Fatal(err)
		}
		index.SetState(slot, kvblock.FeedExact)
	}
	// Each prompt is held by four ranks.
	for number := range 256 {
		ids := tokens(number, bedPrompt)
		names := make([]kvblock.EngineHash, len(ids)/block)
		for i := range names {
			names[i] = kvblock.EngineHash(number*100_000 + i + 1)
		}
		for n := range 4 {
			index.Store(replica.Slot((number*7+n*13)%ranks), &kvblock.Stored{Hashes: names, Tokens: ids, BlockSize: block})
		}
		x.prompts = append(x.prompts, blockhash.Chain(nil, ids, block, blockhash.Namespace{}))
	}
	for range len(x.flight) {
		x.choose(b)
	}
	return x
}

// choose places a request and ends the oldest one; it returns the time that the choice took.
func (x *bed) choose(b *testing.B) time.Duration {
	n := x.asked
	x.asked++
	hashes := x.prompts[n%len(x.prompts)]
	req := chooser.Request{
		Request: decision.Request{ID: strconv.Itoa(n), Model: "m"},
		Pool:    chooser.Pool{Replicas: x.replicas},
		Prompt:  chooser.Prompt{PromptTokens: bedPrompt, Hashes: func(int) []blockhash.Hash { return hashes }},
		Caller:  chooser.Caller{Session: strconv.Itoa(n % 1000)},
		Reply:   chooser.Reply{ExpectedOutput: 256},
		Terms:   chooser.Terms{NoQueue: true},
	}
	began := time.Now()
	choice, err := x.chooser.Choose(b.Context(), &req)
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	if n%8 != 0 { // some ranks always have requests that wait for their first token
		choice.FirstToken()
	}
	at := &x.flight[n%len(x.flight)]
	if *at != nil {
		(*at).Release(done(decision.EndCompleted))
	}
	*at = choice
	return took
}

// withRoles makes the fleet's replicas NIXL engines with these roles in turn.
func (x *bed) withRoles(roles ...string) {
	for i, r := range x.replicas {
		with := *r // a replica never changes
		with.Labels = map[string]string{replica.LabelConnector: "nixl", replica.LabelRole: roles[i%len(roles)]}
		x.replicas[i] = &with
	}
	x.splits = true
}

// A choice among ranks with connectors prices each way: it takes no more than half as long again.
func BenchmarkChooseWays(b *testing.B) {
	for name, roles := range map[string][]string{"none": nil, "both": {"both"}, "split": {"prefill", "decode", "both", "decode"}} {
		b.Run(name, func(b *testing.B) {
			x := newBed(b, 64, decision.PredictedTTFT)
			if roles != nil {
				x.withRoles(roles...)
			}
			times := make([]time.Duration, 0, 1<<16)
			split := 0
			b.ReportAllocs()
			for b.Loop() {
				choice, took := x.price(b)
				if choice.Decision.Split() != nil {
					split++
				}
				if len(times) < cap(times) {
					times = append(times, took)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2])/1e3, "µs/choice-p50")
			b.ReportMetric(float64(split)/float64(b.N), "split")
		})
	}
}

// The booking of a split request costs two bookings: of the requests that are booked here, one in five is split.
func BenchmarkChooseBookedWays(b *testing.B) {
	for name, roles := range map[string][]string{"none": nil, "both": {"both"}, "fifth": {"both"}} {
		b.Run(name, func(b *testing.B) {
			x := newBed(b, 64, decision.PredictedTTFT)
			if roles != nil {
				x.withRoles(roles...)
			}
			times := make([]time.Duration, 0, 1<<16)
			split, n := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				hashes := x.prompts[n%len(x.prompts)]
				req := &chooser.Request{
					Request: decision.Request{ID: "w" + strconv.Itoa(n), Model: "m"}, Pool: chooser.Pool{Replicas: x.replicas},
					Prompt: chooser.Prompt{PromptTokens: bedPrompt, Hashes: func(int) []blockhash.Hash { return hashes }},
					Reply:  chooser.Reply{ExpectedOutput: 256}, Terms: chooser.Terms{NoQueue: true, Splittable: x.splits},
				}
				if name == "fifth" && n%5 == 0 {
					req.Options.Weights = map[string]float64{"split_bonus": 1000}
				}
				began := time.Now()
				choice, err := x.chooser.Choose(b.Context(), req)
				took := time.Since(began)
				if err != nil {
					b.Fatal(err)
				}
				if lead := choice.Prefill(); lead != nil {
					split++
					lead.Release(done(decision.EndCanceled))
				}
				choice.Release(done(decision.EndCanceled))
				if len(times) < cap(times) {
					times = append(times, took)
				}
			}
			var sum time.Duration
			for _, t := range times {
				sum += t
			}
			b.ReportMetric(float64(sum)/float64(len(times))/1e3, "µs/choice-mean")
			b.ReportMetric(float64(split)/float64(n), "split")
		})
	}
}

// price makes a choice that is not booked, so that all pools stay alike.
func (x *bed) price(b *testing.B) (*chooser.Choice, time.Duration) {
	hashes := x.prompts[x.asked%len(x.prompts)]
	x.asked++
	req := &chooser.Request{
		Request: decision.Request{Model: "m"},
		Pool:    chooser.Pool{Replicas: x.replicas},
		Prompt:  chooser.Prompt{PromptTokens: bedPrompt, Hashes: func(int) []blockhash.Hash { return hashes }},
		Reply:   chooser.Reply{ExpectedOutput: 256},
		Terms:   chooser.Terms{Booking: chooser.DryRun, Splittable: x.splits},
	}
	began := time.Now()
	choice, err := x.chooser.Choose(b.Context(), req)
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	return choice, took
}

// The time of a choice grows with the fleet much less than the fleet does.
func BenchmarkChoose(b *testing.B) {
	for _, policy := range []decision.Policy{decision.PredictedTTFT, decision.OverlapLoad, decision.WeightedScorers, decision.LeastRequests, decision.RoundRobin} {
		for _, ranks := range []int{64, 1000} {
			b.Run(fmt.Sprintf("%s/ranks=%d", policy, ranks), func(b *testing.B) {
				x := newBed(b, ranks, policy)
				times := make([]time.Duration, 0, 1<<16)
				b.ReportAllocs()
				for b.Loop() {
					if took := x.choose(b); len(times) < cap(times) {
						times = append(times, took)
					}
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2])/1e3, "µs/choice-p50")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}

// A choice among ranks that hold parts of prompts in lower tiers costs a little more: each of these is priced.
func BenchmarkChooseTiers(b *testing.B) {
	for _, tiers := range []bool{false, true} {
		b.Run(fmt.Sprintf("tiers=%t", tiers), func(b *testing.B) {
			x := newBed(b, 64, decision.PredictedTTFT)
			if tiers {
				x.withTiers()
			}
			times := make([]time.Duration, 0, 1<<16)
			loads := 0
			b.ReportAllocs()
			for b.Loop() {
				choice, took := x.price(b)
				if choice.Decision.Pick().Load > 0 {
					loads++
				}
				if len(times) < cap(times) {
					times = append(times, took)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2])/1e3, "µs/choice-p50")
			b.ReportMetric(float64(loads)/float64(b.N), "loads")
		})
	}
}

// withTiers has the ranks keep each prompt in host memory as well, and displaces a half of it from the GPU; a fourth of the ranks share a store.
func (x *bed) withTiers() {
	for number := range 256 {
		ids := tokens(number, bedPrompt)
		names := make([]kvblock.EngineHash, len(ids)/block)
		for i := range names {
			names[i] = kvblock.EngineHash(number*100_000 + i + 1)
		}
		for n := range 4 {
			slot := replica.Slot((number*7 + n*13) % len(x.replicas))
			x.index.Store(slot, &kvblock.Stored{Hashes: names, Tier: kvblock.TierCPU})
			x.index.Remove(slot, &kvblock.Removed{Hashes: names[len(names)/2:]})
			if slot%4 == 0 {
				x.index.SetStore(slot, "a store")
				x.index.Store(slot, &kvblock.Stored{Hashes: names, Tier: kvblock.TierCPU, Remote: true})
			}
		}
	}
}

// The calls of programs, of which each rank has about 15, cost no more than a tenth more than without programs.
func BenchmarkChoosePrograms(b *testing.B) {
	for _, horizon := range []time.Duration{0, chooser.DefaultConfig().ProgramHorizon} {
		b.Run(fmt.Sprintf("horizon=%s", horizon), func(b *testing.B) {
			x := newBed(b, 64, decision.PredictedTTFT, func(c *chooser.Config) { c.ProgramHorizon = horizon })
			times := make([]time.Duration, 0, 1<<16)
			b.ReportAllocs()
			for b.Loop() {
				if took := x.call(b); len(times) < cap(times) {
					times = append(times, took)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2])/1e3, "µs/choice-p50")
			placed := 0
			for _, m := range x.chooser.Programs(func(string) (programs.Filter, bool) { return programs.Filter{}, true }, 1) {
				placed += m.Stats.Placed
			}
			b.ReportMetric(float64(placed), "programs")
		})
	}
}

// call is choose for a call that may wait, of one of a thousand programs in turn; each has its first token at once.
func (x *bed) call(b *testing.B) time.Duration {
	n := x.asked
	x.asked++
	hashes := x.prompts[n%len(x.prompts)]
	req := chooser.Request{
		Request: decision.Request{ID: strconv.Itoa(n), Model: "m"},
		Pool:    chooser.Pool{Replicas: x.replicas},
		Prompt:  chooser.Prompt{PromptTokens: bedPrompt, Hashes: func(int) []blockhash.Hash { return hashes }},
		Caller:  chooser.Caller{Session: "p" + strconv.Itoa(n%1000)},
		Reply:   chooser.Reply{ExpectedOutput: 256},
	}
	began := time.Now()
	choice, err := x.chooser.Choose(b.Context(), &req)
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	choice.FirstToken()
	at := &x.flight[n%len(x.flight)]
	if *at != nil {
		(*at).Release(done(decision.EndCompleted))
	}
	*at = choice
	return took
}
