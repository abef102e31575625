package grpcapi_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// full is a decision with a value in every field that the contract has a place for.
func full() decisionlog.Entry {
	d := &decision.Decision{
		Request:  decision.Request{ID: "d", Attempt: 2, RequestID: "q", Tenant: "team", Model: "m", Adapter: "a", TraceID: "t", SpanID: "s", Side: decision.Side{Model: "x", Name: "stable", InsteadOf: "canary"}},
		At:       time.Unix(1, 2),
		Rule:     decision.Rule{Policy: decision.PredictedTTFT, Objective: decision.ObjectiveSLO, Targets: decision.Targets{TTFT: time.Second, TPOT: time.Millisecond}, Pinned: true, Params: decision.Params{Temperature: 1, KVWeight: .5}, Seed: 1<<63 + 1, Cursor: 3},
		Reason:   decision.ReasonTie,
		Prompt:   decision.Prompt{PromptTokens: 100, Estimated: true, Keyless: true, TooLong: true, PromptChars: 400, ExpectedOutput: 7},
		Deciders: decision.Deciders{DecidedBy: "b", AskedBy: "a", Alone: "moved"},
		Ranks:    decision.Ranks{Others: 5, VetoedOthers: 3, Chosen: 1},
		DryRun:   true,
		Margin:   .3,
		Fleet:    decision.Fleet{Load: .5, Omega: 1.7, Rate: 9000, Returning: .3},
		Timing:   decision.Timing{Waited: 4, Held: 5, Took: 6, Scored: 7, Tries: 8},
		Ways: []decision.Way{{
			Prefill: decision.RankID{Replica: "r0", Slot: 1, Rank: 2}, Decode: decision.RankID{Replica: "r1", Rank: 1}, Held: 3, Moved: 4,
			Cost: .5, TTFT: .25, Queue: .125, Compute: .75, Transfer: .5,
		}},
		Shadow: &decision.Shadow{Policy: decision.RoundRobin, Replica: "r0", Rank: 1, Agrees: true, Regret: -.5},
		Memory: &decision.MemoryWait{Program: 255, Tokens: 9100, Free: 800, Before: 3, Expected: 40 * time.Second, Waited: 50 * time.Second},
		Lookup: &decision.Lookup{Source: "lmcache", Result: "hit", Took: 9},
	}
	one := decision.Candidate{
		RankID:   decision.RankID{Replica: "r1", Rank: 1},
		Overlap:  decision.Overlap{Feed: 2, BlockSize: 16, GPU: 64, CPU: 16, Disk: 8},
		Veto:     decision.VetoCap,
		Affinity: decision.Affinity{Session: true, Chars: 9, Held: 10, Place: 1},
		RankLoad: decision.RankLoad{Requests: 2, Waiting: 1, QueuedTokens: 11, DecodeBlocks: 1.5, Blocks: 1000, EngineWaiting: 3, KVUsage: .25, Silent: .3},
		Forecast: decision.Forecast{Backlog: .1, Planned: .2, Decode: .09, Crowding: .1, Uncached: 12, Prefill: .11, TTFT: .21, TPOT: .02, Late: .3},
		Pace:     decision.Pace{TokenTime: 1e-4, Bend: 4000, StepTime: .02, Slowdown: .1, Overhead: .003, Spread: .04, Speed: decision.SpeedLearned, Busy: .5, FullStep: .08},
		Revisits: decision.Revisits{Returns: 1.5, Saved: .06, Residual: .07},
		Conduct:  decision.Conduct{Drag: .6, Claimed: 88, Suspicions: 5, Trust: .5, Slowness: 6},
		Loading:  decision.Loading{Load: .4, LoadWait: .1, Loadable: 20, Named: 6},
		Adapting: decision.Adapting{Adapter: decision.AdapterFull, AdapterWait: .5, AdapterLoad: .25, AdapterLoss: .125},
		Cost:     .4,
	}
	d.Candidates = []decision.Candidate{{RankID: decision.RankID{Replica: "r0"}, RankLoad: decision.RankLoad{EngineWaiting: -1, KVUsage: -1}}, one}
	return decisionlog.Entry{Decision: d, Outcome: &decision.Outcome{
		ID: "d", Attempt: 2, Replica: "r1", Rank: 1, End: decision.EndUnserved, TTFT: 2, Predicted: 3, Duration: 4, PromptTokens: 5, OutputTokens: 6, CachedTokens: 7, PredictedCached: 8,
	}}
}

// A line of the decisions' file is the Decision that ExplainDecision returns: the same JSON, with nothing left out.
func TestADecisionHasOneForm(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	e := full()
	r.decisions.Add(e.Decision)
	r.decisions.Finish(*e.Outcome)
	line, err := json.Marshal(grpcapi.DecisionLine(e))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/decision.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(want), line) {
		t.Errorf("%s\nwant %s", line, want)
	}
	var filed kvpilotv1.Decision
	if err := protojson.Unmarshal(line, &filed); err != nil {
		t.Fatal(err)
	}
	got, err := kvpilotv1.NewRoutingServiceClient(r.socket).ExplainDecision(t.Context(), &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: "d"}})
	if err != nil || len(got.GetDecisions()) != 1 || !proto.Equal(got.GetDecisions()[0], &filed) {
		t.Fatalf("%v\nexplained %v\nfiled     %v", err, got, &filed)
	}
	complete(t, &filed, "counted_output_tokens")
	complete(t, filed.GetCandidates()[1], "")
	complete(t, filed.GetCandidates()[1].GetSpeed(), "samples prediction_ratio") // not a decision's
	complete(t, filed.GetCandidates()[1].GetConduct(), "token_time empty_share") // not a decision's
	complete(t, filed.GetCandidates()[1].GetAdapter(), "")
	complete(t, filed.GetOutcome(), "counted_output_tokens") // the engine gave its own
	complete(t, filed.GetShadow(), "")
	complete(t, filed.GetMemoryWait(), "")
	complete(t, filed.GetSplit(), "")
	complete(t, filed.GetDirectory(), "")
	if got := filed.GetParams(); len(got) != 2 || got["temperature"] != 1 || got["kv_weight"] != .5 {
		t.Errorf("the policy's numbers are %v", got)
	}
	if filed.GetCandidates()[1].GetSpeed().GetTokensPerSecond() != 1e4 {
		t.Errorf("the rate is %v", filed.GetCandidates()[1].GetSpeed())
	}
}

// complete fails for fields without a value.
func complete(t *testing.T, m proto.Message, but string) {
	t.Helper()
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); !m.ProtoReflect().Has(f) && !strings.Contains(but, string(f.Name())) {
			t.Errorf("%s has no value", f.FullName())
		}
	}
}

func TestListsWithoutTheOtherCandidates(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.decisions.Add(full().Decision)
	for only, want := range map[bool]int{false: 2, true: 1} {
		got, err := kvpilotv1.NewRoutingServiceClient(r.socket).ListDecisions(t.Context(), &kvpilotv1.ListDecisionsRequest{OnlyChosen: only})
		if err != nil || len(got.GetDecisions()) != 1 || len(got.GetDecisions()[0].GetCandidates()) != want || got.GetDecisions()[0].GetCandidates()[want-1].GetReplicaId() != "r1" {
			t.Errorf("only chosen %t: %v, %v", only, got, err)
		}
	}
}

// The role observe makes dry runs, and books nothing.
func TestObserversMakeDryRuns(t *testing.T) {
	c := grpcapi.DefaultConfig()
	c.Keys = append(c.Keys, grpcapi.Key{Name: "watcher", Key: secret.New("observe-key-0001"), Roles: []string{"observe"}})
	r := newRig(t, c)
	r.router.choose = func(q *intake.Question) (*router.Answer, error) {
		return &router.Answer{Choice: &chooser.Choice{Decision: full().Decision, Replica: &replica.Replica{ID: "r1"}}}, nil
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "observe-key-0001")
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	if _, err := client.ChooseReplica(ctx, &kvpilotv1.ChooseReplicaRequest{Booking: kvpilotv1.Booking_BOOKING_DRY_RUN, Explain: true}); err != nil || r.router.questions[0].Booking != intake.DryRun || !r.router.questions[0].ShowOverlap {
		t.Errorf("a dry run: %v, %+v", err, r.router.questions)
	}
	for _, in := range []*kvpilotv1.ChooseReplicaRequest{{}, {Booking: kvpilotv1.Booking_BOOKING_RESERVE}, {Booking: kvpilotv1.Booking_BOOKING_NONE}} {
		if _, err := client.ChooseReplica(ctx, in); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "the role route") {
			t.Errorf("a choice: %v", err)
		}
	}
	if len(r.router.questions) != 1 {
		t.Errorf("the router was asked %d times", len(r.router.questions))
	}
}

func TestTheRouterReportsItself(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.history.Served(false)
	r.history.Outcome(decision.Outcome{TTFT: 10 * time.Millisecond, PromptTokens: 100, CachedTokens: 60})
	r.history.Unserved("NO_REPLICA")
	client := kvpilotv1.NewRouterServiceClient(r.socket)
	got, err := client.GetStatus(t.Context(), &kvpilotv1.GetStatusRequest{})
	if err != nil || got.GetPolicy() != "predicted-ttft" || got.GetUptime().AsDuration() <= 0 || got.GetIndex() == nil || got.GetMinute() == nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, length := range []time.Duration{0, time.Second, 15 * time.Second} {
		in := &kvpilotv1.GetHistoryRequest{}
		if length > 0 {
			in.Step = durationpb.New(length)
		}
		got, err := client.GetHistory(t.Context(), in)
		steps := got.GetSteps()
		if err != nil || len(steps) == 0 || steps[len(steps)-1].GetCounted().AsDuration() != max(length, time.Second) {
			t.Fatalf("steps of %s: %v, %v", length, got, err)
		}
		requests, unserved := uint32(0), uint32(0)
		for _, s := range steps {
			requests, unserved = requests+s.GetRequests(), unserved+s.GetUnserved()["NO_REPLICA"]
		}
		if requests != 1 || unserved != 1 {
			t.Errorf("steps of %s count %d and %d", length, requests, unserved)
		}
	}
	if got, err := client.GetHistory(t.Context(), &kvpilotv1.GetHistoryRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}); err != nil || len(got.GetSteps()) != 0 {
		t.Errorf("of the future: %v, %v", got, err)
	}
	if _, err := client.GetHistory(t.Context(), &kvpilotv1.GetHistoryRequest{Step: durationpb.New(7 * time.Second)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("steps of 7 s: %v", err)
	}
}
