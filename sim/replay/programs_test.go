package replay

import (
	"math"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// A load by sessions at once starts a session when another one ends, and no sooner.
func TestSessionsAtOnce(t *testing.T) {
	p := Profiles()[0]
	trace := generated(t, "agent", 300)
	w := newWorkload(trace, 512)
	s := newSim(w, newPooled(&p, Hardware{}, 2, 512), 1, 1)
	s.pooled = true
	s.router = &oracle{sim: s, left: make([]float64, 2), work: make([]float64, len(trace.Calls))}
	const most = 3
	s.limit(most)
	s.run(0)

	type span struct{ from, to float64 }
	spans := map[int]*span{}
	for i := range trace.Calls {
		if math.IsNaN(s.done[i]) {
			t.Fatalf("call %d did not end", i)
		}
		c := trace.Calls[i].Session
		if spans[c] == nil {
			spans[c] = &span{from: s.arrived[i]}
		}
		spans[c].to = max(spans[c].to, s.done[i])
	}
	if len(spans) < 2*most {
		t.Fatalf("%d sessions are too few for the test", len(spans))
	}
	full := 0
	for c, one := range spans {
		others := 0
		for o, other := range spans {
			if o != c && other.from <= one.from && other.to > one.from {
				others++
			}
		}
		if others >= most {
			t.Errorf("session %d starts at %.1f beside %d others, want fewer than %d", c, one.from, others, most)
		}
		if others == most-1 {
			full++
		}
	}
	if full < len(spans)-most {
		t.Errorf("%d of %d sessions start as the third at once, want all but the first ones", full, len(spans))
	}
}

func TestPlayByMemory(t *testing.T) {
	trace := generated(t, "agent", 200)
	o := Options{Traffic: Traffic{Trace: trace, Memory: []float64{0.3, 0.6}}, Engines: Engines{Replicas: 2, Profile: Profiles()[0], Block: 512, Delays: LocalDelays()}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 1}}
	reports, err := PlayLoads(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(reports) != 2 {
		t.Fatalf("%d reports, want one per load", len(reports))
	}
	memory := float64(2 * o.Profile.CacheTokens)
	for i, r := range reports {
		if want := o.Memory[i] * memory / trace.resident(); math.Abs(float64(r.AtOnce)-want) > 0.5+1e-9 {
			t.Errorf("%d sessions at once take %.1f of the memory, want about %.2f", r.AtOnce, o.Memory[i], want)
		}
		for name, p := range map[string]*Programs{"oracle": r.Oracle.Programs, "policy": r.Policies[decision.PredictedTTFT].Programs} {
			if p == nil || p.PerHour <= 0 || p.Mean <= 0 || p.P99 < p.P50 || p.Wait < p.Waited || p.WaitedLong > p.Wait || p.WaitedLong > 0 && p.WaitedLong < max(p.Waited, longWait) {
				t.Errorf("%s at %v times the memory: %+v", name, o.Memory[i], p)
			}
		}
	}
	if a, b := reports[0].Oracle.Programs.PerHour, reports[1].Oracle.Programs.PerHour; b <= a {
		t.Errorf("%.1f sessions per hour with more at once, want more than %.1f", b, a)
	}

	o.Trace = generated(t, "synth", 50)
	if _, err := PlayLoads(o); err == nil {
		t.Error("an open loop has no sessions at once, want an error")
	}
}

// Agents whose contexts take twice the memory keep their caches: where they begin one after the other as memory becomes free, more of
// them end per hour, and sooner, than where all begin at once.
func TestTwiceTheAgentsDoNotCollapse(t *testing.T) {
	plays(t)
	trace := generated(t, "agent", 800)
	p := Profiles()[0]
	o := Options{Traffic: Traffic{Trace: trace}, Engines: Engines{Replicas: 2, Profile: p, Block: 512, Delays: LocalDelays()}, Routing: Routing{PaceBias: 1}}
	play := func(horizon time.Duration, routers int) Numbers {
		o := o
		if o.Routers = routers; routers > 1 {
			o.Fleet, o.RTT = FleetDecider, 0.001
		}
		j := &job{options: o, work: newWorkload(trace, 512), speed: 1, seed: 1, setup: ruleset{Policy: decision.PredictedTTFT}}
		s := newSim(j.work, newEngines(&p, Hardware{}, o.Replicas, 512), 1, 1)
		s.delays = o.Delays
		s.limit(o.fitting(2))
		cfg := chooser.DefaultConfig()
		cfg.Queue.MaxWait, cfg.ProgramHorizon = 0, horizon
		v, err := newService(s, cfg, j)
		if err != nil {
			t.Fatal(err)
		}
		s.router = v
		if s.run(0); v.err() != nil || s.ended != len(trace.Calls) {
			t.Fatalf("%d of %d calls ended, error %v", s.ended, len(trace.Calls), v.err())
		}
		return s.numbers(DefaultGoal())
	}
	with, without := play(chooser.DefaultConfig().ProgramHorizon, 1), play(0, 1)
	t.Logf("with programs: %.3f from the cache, %+v", with.HitRate, *with.Programs)
	t.Logf("without: %.3f from the cache, %+v", without.HitRate, *without.Programs)
	if with.HitRate < 0.85 {
		t.Errorf("%.3f of the prompts is from the cache, want 0.85 at least", with.HitRate)
	}
	if with.Programs.PerHour < 1.5*without.Programs.PerHour {
		t.Errorf("%.1f programs per hour, want half as many again as %.1f", with.Programs.PerHour, without.Programs.PerHour)
	}
	if fleet := play(chooser.DefaultConfig().ProgramHorizon, 3); fleet.HitRate < with.HitRate-0.05 || fleet.Programs.PerHour < 0.85*with.Programs.PerHour {
		t.Errorf("three routers with one decider: %.3f from the cache, %.1f programs per hour, want those of one: %.3f, %.1f", fleet.HitRate, fleet.Programs.PerHour, with.HitRate, with.Programs.PerHour)
	}
	if with.Programs.Mean > without.Programs.Mean/1.5 {
		t.Errorf("programs take %.0f s, want at most two thirds of %.0f", with.Programs.Mean, without.Programs.Mean)
	}
}

// Chats arrive next to programs at their own rate, as long as programs run, and do not wait for the programs' memory.
func TestChatsNextToPrograms(t *testing.T) {
	plays(t)
	trace := generated(t, "agent", 900)
	o := Options{
		Traffic: Traffic{Trace: trace, Memory: []float64{1.5}, Chats: 0.1}, Engines: Engines{Replicas: 1, Profile: Profiles()[0], Block: 512, Delays: LocalDelays()},
		Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 1},
	}
	reports, err := PlayLoads(o)
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	p := r.Policies[decision.PredictedTTFT]
	if want := 1.5 * float64(o.Profile.CacheTokens) / trace.resident(); math.Abs(float64(r.AtOnce)-want) > 0.5+1e-9 {
		t.Errorf("%d programs at once, want %.1f: chats are no programs", r.AtOnce, want)
	}
	programs := 0
	for i := range trace.Calls {
		programs = max(programs, trace.Calls[i].Session+1)
	}
	if got := p.Programs.PerHour * p.Programs.Makespan / 3600; math.Abs(got-float64(programs)) > 0.01 {
		t.Errorf("%.2f programs end, want %d", got, programs)
	}
	if p.Chats == nil || p.Chats.Calls < 20 || p.Chats.Calls > 0.15*p.Programs.Makespan {
		t.Fatalf("chats %+v in %.0f s, want about 0.1 per second", p.Chats, p.Programs.Makespan)
	}
	if p.Chats.Mean <= 0 || p.Chats.P99 < p.Chats.P50 || p.Chats.AnswerMean < p.Chats.Mean || p.Chats.HitRate < 0 || p.Chats.HitRate > 1 {
		t.Errorf("chats %+v", p.Chats)
	}
	if a := p.Chats.Alone; a == nil || a.Calls != p.Chats.Calls || a.Mean <= 0 || a.Mean > p.Chats.Mean {
		t.Errorf("alone the same chats have %+v, next to programs %+v", a, p.Chats)
	}
	if r.Oracle.Chats == nil || r.Oracle.Chats.Alone != nil {
		t.Errorf("the oracle's chats %+v", r.Oracle.Chats)
	}
	if p.Chats.Mean > p.Programs.Waited/4 {
		t.Errorf("chats have their first token after %.1f s, while programs wait %.1f s for memory: they wait like programs", p.Chats.Mean, p.Programs.Waited)
	}
	o.Memory = nil
	if _, err := PlayLoads(o, 0.5); err == nil {
		t.Error("chats next to a load by rate are played")
	}
}

// Three times the agents that the memory holds at once finish about as many programs in their first minute as a third of them: what has begun is
// finished first. All begin at once, and nothing is known of their lengths.
func TestManyAgentsFinishAsManyProgramsAsFew(t *testing.T) {
	plays(t)
	trace := generated(t, "steps", 1600)
	p := Profiles()[0]
	p.CacheTokens = 250 * 512
	o := Options{Traffic: Traffic{Trace: trace}, Engines: Engines{Replicas: 4, Profile: p, Block: 512, Delays: LocalDelays(), Hardware: Hardware{Speeds: []float64{4}}}, Routing: Routing{PaceBias: 1}}
	const minute, runs = 60, 8
	finished := func(agents int) (programs, calls int) {
		for seed := range uint64(runs) {
			j := &job{options: o, work: newWorkload(trace, 512), speed: 1, seed: seed + 1, setup: ruleset{Policy: decision.PredictedTTFT}}
			s := newSim(j.work, newEngines(&p, o.Hardware, o.Replicas, 512), 1, j.seed)
			s.delays = o.Delays
			s.limit(agents)
			for i := range s.events {
				s.events[i].at = 0
			}
			cfg := chooser.DefaultConfig()
			cfg.Queue.MaxWait = 0
			v, err := newService(s, cfg, j)
			if err != nil {
				t.Fatal(err)
			}
			s.router = v
			if s.run(0); v.err() != nil {
				t.Fatal(v.err())
			}
			for i, done := range s.done {
				if math.IsNaN(done) {
					t.Fatalf("call %d of %d agents did not end", i, agents)
				}
				if done > minute {
					continue
				}
				calls++
				if i+1 == len(s.done) || trace.Calls[i+1].Prev < 0 {
					programs++
				}
			}
		}
		return programs / runs, calls / runs
	}
	few, fewCalls := finished(16)
	for _, agents := range []int{32, 48} {
		many, calls := finished(agents)
		t.Logf("%d agents: %d programs, %d calls in a minute; 16 agents: %d, %d", agents, many, calls, few, fewCalls)
		if float64(many) < 0.8*float64(few) {
			t.Errorf("%d agents finish %d programs in a minute, want about as many as 16 agents, %d", agents, many, few)
		}
		if float64(calls) < 0.98*float64(fewCalls) {
			t.Errorf("%d agents have %d calls in a minute, want as many as 16 agents, %d", agents, calls, fewCalls)
		}
	}
}

// Before engines that compute their whole memory again sooner than chats return, chats play as if there were no programs.
func TestChatsBeforeFastEnginesAreNoPrograms(t *testing.T) {
	plays(t)
	o := Options{Traffic: Traffic{Trace: generated(t, "conv", 800), Rates: []float64{13}}, Engines: Engines{Replicas: 2, Profile: Profiles()[0], Block: 512, Delays: LocalDelays(), Hardware: Hardware{Speeds: []float64{16}}}, Routing: Routing{PaceBias: 1}, Rules: Rules{Policies: []decision.Policy{decision.PredictedTTFT}}, Runs: Runs{Seeds: 1}}
	play := func() PolicyReport {
		reports, err := PlayLoads(o)
		if err != nil {
			t.Fatal(err)
		}
		return reports[0].Policies[decision.PredictedTTFT]
	}
	with := play()
	o.NoPrograms = true
	without := play()
	if w, wo := with.AnswerMean, without.AnswerMean; math.Abs(w-wo) > 0.01*wo {
		t.Errorf("whole answers take %.2f s with programs, %.2f s without", w, wo)
	}
}
