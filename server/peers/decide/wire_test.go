package decide

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

func TestAQuestionSurvivesTheWire(t *testing.T) {
	replicas := []*replica.Replica{{ID: "r0", Slots: []replica.Slot{5, 6}}}
	req := &chooser.Request{
		Request: decision.Request{ID: "a", Attempt: 2, RequestID: "x", Tenant: "ten", Model: "m", Adapter: "lora", TraceID: "t", SpanID: "s"},
		Pool:    chooser.Pool{Served: "served", Replicas: replicas},
		Prompt: chooser.Prompt{
			PromptTokens: 100, Estimated: true, Longest: 90, Keyless: true, Unread: true, Answer: chooser.Answer{Slot: 6, Known: 32, Held: 64},
			Directory: &directory.Answer{Lookup: decision.Lookup{Source: "lmcache", Result: "hit", Took: time.Millisecond}, Held: []directory.Held{{Slot: 5, From: 16, Host: 32, Store: 64}}},
		},
		Caller: chooser.Caller{Session: "sess", SessionReturn: chooser.NoReturn, Priority: -3},
		Reply:  chooser.Reply{ExpectedOutput: 7, Samples: 3, Unstreamed: true, Quiet: true},
		Limits: chooser.Limits{Exclude: []replica.ID{"gone"}, Holder: "r0", Options: chooser.Options{
			Policy: decision.LeastTokens, Objective: decision.ObjectiveCompletion, Weights: map[string]float64{"cpu_credit": 0.5}, Targets: decision.Targets{TTFT: time.Second, TPOT: time.Millisecond},
			Allowed: []replica.ID{"r0"}, Denied: []replica.ID{"r9"}, Pinned: "r0", PinnedRank: -1, MinRank: 1, MaxRank: -1, MaxRequests: 9,
		}},
		Terms: chooser.Terms{Booking: chooser.Unbooked, NoQueue: true, Splittable: true},
		Bytes: 12, Sampled: true,
	}
	chain := []blockhash.Hash{1, 2, 1 << 63}
	req.Hashes = func(int) []blockhash.Hash { return chain }
	ask := askOf(req, []int{16, 32}, func(slot replica.Slot) (replica.Rank, bool) {
		return replica.Rank{Replica: "r0", Index: int(slot) - 5}, true
	})
	ask.Age, ask.PrefillNumber = span(3*time.Second), 8
	text, err := proto.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	var back peerv1.Ask
	if err := proto.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	got := requestOf(&back, "0000000a", replicas)
	if keys := got.Hashes(32); !reflect.DeepEqual(keys, chain) || got.Hashes(64) != nil {
		t.Errorf("hashes %v, and %v for an unknown size", keys, got.Hashes(64))
	}
	want := *req
	want.Hashes, got.Hashes = nil, nil
	want.Age, want.AskedBy, want.Again = 3*time.Second, "0000000a", true
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("after the wire: %+v\nwant %+v", *got, want)
	}
}

// A choice says whether another replica could serve: further ranks of the chosen one are no way out when its breaker is open.
func TestAChoiceSaysWhetherAnotherReplicaCouldServe(t *testing.T) {
	rank := func(id replica.ID, rank uint16, veto decision.Veto) decision.Candidate {
		return decision.Candidate{RankID: decision.RankID{Replica: id, Rank: rank}, Veto: veto}
	}
	for name, test := range map[string]struct {
		candidates []decision.Candidate
		others     int
		want       bool
	}{
		"two ranks of one":      {[]decision.Candidate{rank("a", 0, decision.VetoNone), rank("a", 1, decision.VetoNone)}, 0, false},
		"many ranks of one":     {[]decision.Candidate{rank("a", 0, decision.VetoNone), rank("a", 1, decision.VetoNone)}, 62, false},
		"another one":           {[]decision.Candidate{rank("a", 0, decision.VetoNone), rank("b", 0, decision.VetoNone)}, 0, true},
		"another one is vetoed": {[]decision.Candidate{rank("a", 0, decision.VetoNone), rank("b", 0, decision.VetoDenied)}, 0, false},
	} {
		here := &decision.Decision{Ranks: decision.Ranks{Candidates: test.candidates, Others: test.others}}
		text, err := proto.Marshal(chosenOf(1, &chooser.Choice{Decision: here}, time.Time{}))
		if err != nil {
			t.Fatal(err)
		}
		var back peerv1.Chosen
		if err := proto.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		there := decisionOf(&back, &chooser.Request{}, "0000000a", 5, time.Time{}, 0)
		if here.HasOtherReplica() != test.want || there.HasOtherReplica() != test.want {
			t.Errorf("%s: %v where it was made, %v where it was asked, want %v", name, here.HasOtherReplica(), there.HasOtherReplica(), test.want)
		}
	}
}

func TestAResultSurvivesTheWire(t *testing.T) {
	for end := decision.EndCompleted; end <= decision.EndResumed; end++ {
		want := chooser.Result{End: end, PromptTokens: 10, OutputTokens: -1, CachedTokens: 0, Counted: true, ServedBy: "r1"}
		if got := resultOf(endOf(4, want)); got != want {
			t.Errorf("after the wire: %+v, want %+v", got, want)
		}
	}
}

// The router that asked shows why the decider had a program wait.
func TestAWaitForMemorySurvivesTheWire(t *testing.T) {
	for _, want := range []*decision.MemoryWait{nil, {Program: 7, Tokens: 9100, Free: 800, Before: 3, Expected: 40 * time.Second, Waited: 41 * time.Second}} {
		here := &decision.Decision{Memory: want, Ranks: decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "a"}}}}}
		there := decisionOf(chosenOf(1, &chooser.Choice{Decision: here}, time.Time{}), &chooser.Request{}, "0000000a", 5, time.Time{}, 0)
		if got := there.Memory; (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("after the wire: %+v, want %+v", got, want)
		}
	}
}

// The router that asked shows, and books, what the request's adapter costs.
func TestTheCostOfAnAdapterSurvivesTheWire(t *testing.T) {
	want := []decision.Adapting{{}}
	for _, state := range decision.AdapterStates() {
		want = append(want, decision.Adapting{Adapter: state, AdapterWait: .5, AdapterLoad: .25, AdapterLoss: .125})
	}
	for _, want := range want {
		here := &decision.Decision{Ranks: decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: "a"}, Adapting: want}}}}
		there := decisionOf(chosenOf(1, &chooser.Choice{Decision: here}, time.Time{}), &chooser.Request{}, "0000000a", 5, time.Time{}, 0)
		if got := there.Pick().Adapting; got != want {
			t.Errorf("after the wire: %+v, want %+v", got, want)
		}
	}
	if odd := adaptingOf(&peerv1.AdapterCost{State: "else", WaitS: math.NaN(), LoadS: -1, LossS: math.Inf(1)}); odd.Adapter != decision.AdapterNone || odd.AdapterWait != 0 || odd.AdapterLoad != 0 || math.IsInf(float64(odd.AdapterLoss), 0) {
		t.Errorf("a message of another version gives %+v", odd)
	}
}

func TestErrorsSurviveTheWire(t *testing.T) {
	refused := &chooser.Refused{Cause: "queue_full", RetryAfter: time.Second}
	if got, ok := errorOf(refusalOf(1, refused)).(*chooser.Refused); !ok || *got != *refused {
		t.Errorf("after the wire: %v", got)
	}
	refused.Cause, refused.Memory = "memory", &decision.MemoryWait{Program: 1 << 63, Tokens: 9100, Free: 800, Before: 3, Expected: 40 * time.Second, Waited: time.Minute}
	got, ok := errorOf(refusalOf(1, refused)).(*chooser.Refused)
	if !ok || got.Cause != "memory" || got.Memory == nil || *got.Memory != *refused.Memory {
		t.Errorf("after the wire: %+v, want %+v", got, refused)
	}
	none := &chooser.NoReplica{Decision: &decision.Decision{}}
	if err := errorOf(refusalOf(1, none)); err != nil {
		t.Errorf("no replica there: %v, want nil: the frontend looks itself", err)
	}
}

// A question of 2,000 tokens: 125 hashes of 8 bytes, and what goes with them.
func TestAQuestionIsSmall(t *testing.T) {
	hashes := make([]blockhash.Hash, 125)
	for i := range hashes {
		hashes[i] = blockhash.Hash(mix(uint64(i + 1)))
	}
	req := &chooser.Request{
		Request: decision.Request{ID: "0123456789abcdef01234567", RequestID: "0123456789abcdef01234567", Model: "meta-llama/Llama-3.1-70B-Instruct"},
		Prompt:  chooser.Prompt{PromptTokens: 2000, Hashes: func(int) []blockhash.Hash { return hashes }},
		Reply:   chooser.Reply{ExpectedOutput: 200},
	}
	ask := askOf(req, []int{16}, nil)
	ask.Number = 1 << 20
	if n := proto.Size(ask); n > 1120 {
		t.Errorf("%d bytes for 125 hashes, want at most 120 besides them", n)
	}
}

func TestPlacesMoveOnlyWithTheirRouter(t *testing.T) {
	var members []member
	for i := range 5 {
		members = append(members, member{fmt.Sprintf("%08x", i*77), peerv1.Ability_ABILITY_ABLE})
	}
	counts := map[ID]int{}
	for i := range 1000 {
		pool := fmt.Sprint("model-", i)
		before := place(pool, members)
		counts[before]++
		without := append(append([]member(nil), members[:2]...), members[3:]...)
		if after := place(pool, without); before != members[2].id && after != before {
			t.Fatalf("%s moved from %s to %s although neither left", pool, before, after)
		}
		unable := append([]member(nil), members...)
		for j := range unable {
			if unable[j].id == before {
				unable[j].ability = peerv1.Ability_ABILITY_UNABLE
			}
		}
		if place(pool, unable) == before {
			t.Fatalf("%s is decided by a router that is not able, although others are", pool)
		}
	}
	for id, n := range counts {
		if n < 130 || n > 270 {
			t.Errorf("%s decides %d of 1000 pools, want about 200", id, n)
		}
	}
}

func FuzzEvent(f *testing.F) {
	req := &chooser.Request{
		Request: decision.Request{ID: "a", Model: "m"},
		Prompt:  chooser.Prompt{PromptTokens: 40, Hashes: func(int) []blockhash.Hash { return []blockhash.Hash{1, 2} }},
	}
	ask := askOf(req, []int{16}, nil)
	ask.Number = 7
	seed, err := proto.Marshal(&peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Ask{Ask: ask}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, uint64(3))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, n uint64) {
		var ev peerv1.FrontendEvent
		if proto.Unmarshal(text, &ev) != nil {
			return
		}
		d := emptyDecider(t)
		d.Up("0000000a")
		d.Event("0000000a", &ev)
		d.Event("0000000a", &ev)
		d.Event("0000000a", &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Drop{Drop: n}})
		d.Down("0000000a")
		d.Tick()
	})
}

// emptyDecider is a decider before one rank.
func emptyDecider(t *testing.T) *Decider {
	t.Helper()
	index := kvindex.New(kvindex.DefaultConfig(), kvindex.Params{})
	book := load.New(load.DefaultConfig(), load.Params{})
	c := chooser.New(chooser.DefaultConfig(), chooser.Params{Index: index, Book: book})
	r := &replica.Replica{ID: "r0", State: replica.StateReady, Slots: []replica.Slot{0}, Models: []replica.Model{{ID: "m"}}, BlockSize: 16}
	book.AddRank(0)
	if err := index.AddRank(0, kvindex.RankInfo{BlockSize: 16}); err != nil {
		t.Fatal(err)
	}
	c.AddRank(0, r, 0)
	return NewDecider(DefaultConfig(), Params{Self: "0000000b", Chooser: c, Replicas: one{r}, Fleet: one{r}})
}

// one is a fleet of a replica and no peer.
type one struct{ replica *replica.Replica }

func (one) Pool(model string) string                    { return model }
func (o one) Serving(string, string) []*replica.Replica { return []*replica.Replica{o.replica} }
func (one) RankOf(replica.Slot) (replica.Rank, bool)    { return replica.Rank{}, false }
func (one) Broken() []replica.ID                        { return nil }
func (one) Ability() peerv1.Ability                     { return peerv1.Ability_ABILITY_ABLE }
func (one) SendEvent(ID, *peerv1.FrontendEvent)         {}
func (one) SendReply(ID, *peerv1.DeciderReply)          {}

// What a peer says becomes load, labels and texts here: words are known ones, numbers are possible ones.
func TestWordsOfPeersAreBounded(t *testing.T) {
	d := decisionOf(&peerv1.Chosen{
		Policy: "evil-1", Reason: "evil-2", Feed: 99, GpuTokens: math.MaxUint32, UncachedTokens: math.MaxUint32, TtftS: math.NaN(), PrefillS: math.Inf(1), TpotS: -1,
		BacklogS: 1e300, Cost: math.Inf(-1), Margin: math.NaN(), Load: math.NaN(), Held: span(time.Hour), Slowdown: math.Inf(1),
		MemoryWait: &peerv1.MemoryWait{NeededTokens: math.MaxUint64, FreeTokens: math.MaxUint64, Expected: span(1e6 * time.Hour), Waited: span(-time.Hour)},
	}, &chooser.Request{Prompt: chooser.Prompt{PromptTokens: 100}}, "0000000a", 5, time.Time{}, time.Second)
	c := d.Candidates[0]
	if d.Policy != decision.PolicyOther || d.Reason != decision.ReasonOther || d.Held != time.Second || d.Margin != 0 || d.Load != 0 {
		t.Errorf("decision %+v", d)
	}
	if c.GPU != 100 || c.Uncached != 100 || c.TTFT != 0 || c.Prefill != maxSeconds || c.TPOT != 0 || c.Backlog != maxSeconds || c.Cost != 0 || c.Slowdown != maxSeconds || c.Feed != 0 {
		t.Errorf("candidate %+v", c)
	}
	if w := *d.Memory; w != (decision.MemoryWait{Tokens: maxMemory, Free: maxMemory, Expected: maxSpan}) {
		t.Errorf("wait for memory %+v", w)
	}
	refused, ok := errorOf(&peerv1.Refused{Cause: "evil-3", RetryAfter: span(1e6 * time.Hour)}).(*chooser.Refused)
	if !ok || refused.Cause != "other" || refused.RetryAfter != time.Hour {
		t.Errorf("refusal %+v", refused)
	}
	if err := errorOf(&peerv1.Refused{Cause: causeInvalid, Message: strings.Repeat("a", 1<<20)}); len(err.Error()) > 2*maxMessage {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	req := requestOf(&peerv1.Ask{PromptTokens: math.MaxUint32, ExpectedOutput: math.MaxUint32, Samples: math.MaxUint32, Age: span(1e6 * time.Hour)}, "0000000a", nil)
	if req.PromptTokens != maxTokens || req.ExpectedOutput != maxTokens || req.Samples != maxSamples || req.Age != maxSpan {
		t.Errorf("question %+v", req)
	}
}

// What a peer says of the ways of a request is bounded, and none is used whose ranks are not known here.
func TestWaysOfPeersAreBounded(t *testing.T) {
	replicas := []*replica.Replica{{ID: "r0", Slots: []replica.Slot{5}}, {ID: "r1", Slots: []replica.Slot{6}}}
	split := func(from, to string) *peerv1.Way {
		return &peerv1.Way{PrefillReplicaId: from, DecodeReplicaId: to, HeldTokens: math.MaxUint32, MovedTokens: math.MaxUint32, Cost: math.NaN(), TtftS: math.Inf(1), TransferS: -1}
	}
	for _, tt := range []struct {
		name string
		in   *peerv1.Chosen
		ok   bool
		ways int
	}{
		{"whole", &peerv1.Chosen{ReplicaId: "r1"}, true, 0},
		{"split", &peerv1.Chosen{ReplicaId: "r1", Prefill: &peerv1.Chosen{ReplicaId: "r0"}, Ways: []*peerv1.Way{split("r0", "r1"), split("r1", "r1"), split("gone", "r1")}}, true, 2},
		{"split without the rank that computes", &peerv1.Chosen{ReplicaId: "r1", Ways: []*peerv1.Way{split("r0", "r1")}}, false, 1},
		{"by another one than the way says", &peerv1.Chosen{ReplicaId: "r1", Prefill: &peerv1.Chosen{ReplicaId: "r1"}, Ways: []*peerv1.Way{split("r0", "r1")}}, false, 1},
		{"to another one", &peerv1.Chosen{ReplicaId: "r1", Prefill: &peerv1.Chosen{ReplicaId: "r1"}, Ways: []*peerv1.Way{split("r1", "r0")}}, false, 1},
		{"without a way", &peerv1.Chosen{ReplicaId: "r1", Prefill: &peerv1.Chosen{ReplicaId: "r0"}}, false, 0},
		{"by a rank that is not known", &peerv1.Chosen{ReplicaId: "r1", Prefill: &peerv1.Chosen{ReplicaId: "gone"}, Ways: []*peerv1.Way{split("gone", "r1")}}, false, 0},
		{"copies", &peerv1.Chosen{ReplicaId: "r1", Ways: []*peerv1.Way{split("r1", "r1"), {DecodeReplicaId: "r1", Copy: true, Begun: span(1e6 * time.Hour)}}}, true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			d := decisionOf(tt.in, &chooser.Request{Prompt: chooser.Prompt{PromptTokens: 100}}, "0000000a", 6, now, 0)
			if ok := readWays(d, tt.in, replicas); ok != tt.ok || len(d.Ways) != tt.ways {
				t.Fatalf("%v with %+v, want %v with %d ways", ok, d.Ways, tt.ok, tt.ways)
			}
			for _, w := range d.Ways {
				if w.Held > 100 || w.Moved > 100 || w.Cost != 0 || w.TTFT > maxSeconds || w.Transfer != 0 || now.Sub(w.Began) > maxSpan && !w.Began.IsZero() {
					t.Errorf("%+v", w)
				}
			}
			if ok := tt.ok && tt.in.Prefill != nil; ok && (d.Split() == nil || len(d.Candidates) != 2 || d.Candidates[1].Slot != 5) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A client's header may have any bytes. A message that cannot be written would cut the link, and with it the questions of others.
func TestTextsOfClientsCanBeSent(t *testing.T) {
	const bad = "a\xffb"
	req := &chooser.Request{
		Request: decision.Request{ID: "a", RequestID: bad, Tenant: bad, Model: bad, Adapter: bad},
		Pool:    chooser.Pool{Served: bad},
		Caller:  chooser.Caller{Session: bad},
		Limits: chooser.Limits{Exclude: []replica.ID{bad}, Avoid: []replica.ID{bad}, Holder: bad, Options: chooser.Options{
			Policy: bad, Weights: map[string]float64{bad: 1}, Allowed: []replica.ID{bad}, Denied: []replica.ID{bad}, Pinned: bad,
		}},
	}
	ask := askOf(req, nil, nil)
	text, err := proto.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	var back peerv1.Ask
	if err := proto.Unmarshal(text, &back); err != nil || back.GetSession() != "a\ufffdb" {
		t.Errorf("arrived as %v, %v", &back, err)
	}
	b := booking{asked: asked{model: bad, session: bad}, choice: &chooser.Choice{Decision: &decision.Decision{
		Request: decision.Request{ID: "a", Tenant: bad}, Ranks: decision.Ranks{Candidates: []decision.Candidate{{RankID: decision.RankID{Replica: bad}}}},
	}}}
	if _, err := proto.Marshal(b.proto(time.Time{})); err != nil {
		t.Error(err)
	}
	if _, err := proto.Marshal(refusalOf(1, fmt.Errorf("no policy %s", bad))); err != nil {
		t.Error(err)
	}
}

// A router of another version may ask for an objective that this one does not have.
func TestUnknownObjectivesAreNone(t *testing.T) {
	for name, want := range map[string]decision.Objective{"": "", "completion": decision.ObjectiveCompletion, "later": ""} {
		req := requestOf(&peerv1.Ask{Options: &peerv1.AskOptions{Objective: name}}, "peer", nil)
		if req.Options.Objective != want {
			t.Errorf("%q is %q, want %q", name, req.Options.Objective, want)
		}
	}
}
