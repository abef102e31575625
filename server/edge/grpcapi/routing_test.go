package grpcapi_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

func TestChooseReplica(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.25, 0.5), nil }
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	one, hot := uint32(1), 0.5
	got, err := client.ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{
		Model: "m", Prompt: &kvpilotv1.ChooseReplicaRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: []uint32{1, 2, 3}}},
		Candidates: &kvpilotv1.Candidates{Allow: []string{"a"}, Deny: []string{"b"}, MinRank: 1, MaxRank: &one},
		Policy:     &kvpilotv1.PolicyOverride{Name: "overlap-load", Params: map[string]float64{"overlap_credit": 2}, Temperature: &hot},
		SessionId:  "s", Priority: 5, ExpectedOutputTokens: 100, Adapter: "lora", CacheSalt: "salt",
		Lease: durationpb.New(time.Minute), RequestId: "req-1", Explain: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	q := r.router.questions[0]
	if q.Model != "m" || !slices.Equal(q.IDs, []uint32{1, 2, 3}) || q.Session != "s" || q.Priority != 5 || q.ExpectedOutput != 100 ||
		q.Adapter != "lora" || q.Salt != "salt" || q.Lease != time.Minute || q.RequestID != "req-1" || q.Booking != intake.ReserveOnce {
		t.Errorf("question %+v", q)
	}
	if o := q.Options; o.Policy != decision.OverlapLoad || o.Allowed[0] != "a" || o.Denied[0] != "b" || o.MinRank != 1 || o.MaxRank != 1 ||
		o.Weights["overlap_credit"] != 2 || o.Weights["temperature"] != 0.5 || o.PinnedRank != -1 {
		t.Errorf("options %+v", o)
	}
	want := &kvpilotv1.ChooseReplicaResponse{
		Host: "h", Port: 8000, Url: "http://h:8000", ReplicaId: "r-1", Model: "m", DecisionId: "d-1", ReservationId: "d-1", Lease: durationpb.New(30 * time.Second),
		Policy: "predicted-ttft", Reason: kvpilotv1.ChoiceReason_CHOICE_REASON_COST, PromptTokens: 48, OverlapGpuTokens: 32, OverlapCpuTokens: 16, PredictedTtft: durationpb.New(250 * time.Millisecond), Effect: kvpilotv1.Effect_EFFECT_APPLIED,
		RequestHeaders: map[string]string{"x-request-id": "req-1", "x-data-parallel-rank": "0"},
	}
	if d := got.GetDecision(); d.GetCandidates()[1].GetTtft().AsDuration() != 500*time.Millisecond || d.GetReplicaId() != "r-1" {
		t.Errorf("decision %v", d)
	}
	got.Decision = nil
	if !proto.Equal(got, want) {
		t.Errorf("answer\n%v\nwant\n%v", got, want)
	}
}

// Both ways of asking say what the caller will report.
func TestWaits13WhatACallerReports(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.25, 0.5), nil }
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	for i, c := range []struct {
		reports kvpilotv1.Reports
		header  string
		want    intake.Reports
	}{
		{kvpilotv1.Reports_REPORTS_UNSPECIFIED, "", intake.ReportsAny},
		{kvpilotv1.Reports_REPORTS_ALL, "all", intake.ReportsFirstToken},
		{kvpilotv1.Reports_REPORTS_END, "end", intake.ReportsEnd},
	} {
		if _, err := client.ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{Model: "m", Reports: c.reports}); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if c.header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-kvpilot-reports", c.header)
		}
		if _, err := client.RouteBody(ctx, &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"model":"m","prompt":"x"}`)}); err != nil {
			t.Fatal(err)
		}
		for _, q := range r.router.questions[2*i:] {
			if q.Terms.Reports != c.want {
				t.Errorf("%s: %v, want %v", c.reports, q.Terms.Reports, c.want)
			}
		}
	}
	if _, err := client.ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{Reports: 9}); err == nil {
		t.Error("an unknown kind of reports was taken")
	}
}

func TestChooseReplicaRefusals(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.25), nil }
	zero := uint32(0)
	for name, tc := range map[string]struct {
		in    *kvpilotv1.ChooseReplicaRequest
		param string
	}{
		"unknown policy":     {&kvpilotv1.ChooseReplicaRequest{Policy: &kvpilotv1.PolicyOverride{Name: "best"}}, "policy"},
		"unknown number":     {&kvpilotv1.ChooseReplicaRequest{Policy: &kvpilotv1.PolicyOverride{Params: map[string]float64{"x": 1}}}, "policy.params"},
		"not a number":       {&kvpilotv1.ChooseReplicaRequest{Policy: &kvpilotv1.PolicyOverride{Params: map[string]float64{"cpu_credit": math.NaN()}}}, `policy.params["cpu_credit"]`},
		"ranks upside down":  {&kvpilotv1.ChooseReplicaRequest{Candidates: &kvpilotv1.Candidates{MinRank: 1, MaxRank: &zero}}, "candidates.max_rank"},
		"no such booking":    {&kvpilotv1.ChooseReplicaRequest{Booking: 9}, "booking"},
		"an endless lease":   {&kvpilotv1.ChooseReplicaRequest{Lease: durationpb.New(2 * time.Hour)}, "lease"},
		"a negative lease":   {&kvpilotv1.ChooseReplicaRequest{Lease: durationpb.New(-time.Hour)}, "lease"},
		"an empty body":      {&kvpilotv1.ChooseReplicaRequest{Prompt: &kvpilotv1.ChooseReplicaRequest_Body{Body: &kvpilotv1.RequestBody{}}}, "body.json"},
		"too high a request": {&kvpilotv1.ChooseReplicaRequest{Priority: 1001}, "priority"},
	} {
		_, err := kvpilotv1.NewRoutingServiceClient(r.hop).ChooseReplica(t.Context(), tc.in)
		if e := apierror.From(err); e == nil || e.Reason != apierror.InvalidBody || e.Param != tc.param {
			t.Errorf("%s: %v (param %q), want a fault of %q", name, err, e.Param, tc.param)
		}
	}
	c := grpcapi.DefaultConfig()
	c.Overrides = false
	closed := newRig(t, c)
	_, err := kvpilotv1.NewRoutingServiceClient(closed.hop).ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{Candidates: &kvpilotv1.Candidates{Pin: "r"}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a pin where callers take no part: %v", err)
	}
}

func TestTheAnswerHasTheReplicasLabels(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) {
		a := answer("r-1", 0.25)
		a.Replica.Labels = map[string]string{"zone": "eu-1a", "node": "n7"}
		return a, nil
	}
	out, err := kvpilotv1.NewRoutingServiceClient(r.hop).ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{})
	if err != nil || out.GetLabels()["zone"] != "eu-1a" || out.GetLabels()["node"] != "n7" {
		t.Errorf("%v with labels %v", err, out.GetLabels())
	}
}

// Any caller may let its own answer wait. What would cost others is an override, and targets have an objective of their own.
func TestObjectiveByHeaderAndByMessage(t *testing.T) {
	closed := grpcapi.DefaultConfig()
	closed.Overrides = false
	for _, tc := range []struct {
		config grpcapi.Config
		header string
		want   decision.Objective
		reason apierror.Reason
	}{
		{closed, "", "", 0},
		{closed, "completion", decision.ObjectiveCompletion, 0},
		{closed, "answer", decision.ObjectiveAnswer, 0},
		{closed, "ttft", "", apierror.PermissionDenied},
		{grpcapi.DefaultConfig(), "ttft", decision.ObjectiveTTFT, 0},
		{grpcapi.DefaultConfig(), "slo", "", apierror.InvalidBody},
		{grpcapi.DefaultConfig(), "soon", "", apierror.InvalidBody},
	} {
		r := newRig(t, tc.config)
		r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.1), nil }
		ctx := httpcall.With(t.Context(), &httpcall.Call{Call: intake.Call{Header: http.Header{"X-Kvpilot-Objective": {tc.header}}, RequestID: "id", Received: time.Now()}})
		_, err := kvpilotv1.NewRoutingServiceClient(r.hop).RouteBody(ctx, &httpbody.HttpBody{Data: []byte(`{"model":"m","prompt":"x"}`)})
		switch {
		case tc.reason != 0:
			if e := apierror.From(err); e.Reason != tc.reason {
				t.Errorf("%q: %v, want %s", tc.header, err, tc.reason)
			}
		case err != nil || len(r.router.questions) != 1 || r.router.questions[0].Options.Objective != tc.want:
			t.Errorf("%q: %v, questions %+v", tc.header, err, r.router.questions)
		}
	}
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.1), nil }
	ask := func(o kvpilotv1.Objective) error {
		_, err := kvpilotv1.NewRoutingServiceClient(r.hop).ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{
			Model: "m", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: "x"}, Policy: &kvpilotv1.PolicyOverride{Objective: o},
		})
		return err
	}
	if err := ask(kvpilotv1.Objective_OBJECTIVE_COMPLETION); err != nil || r.router.questions[0].Options.Objective != decision.ObjectiveCompletion {
		t.Errorf("%v, questions %+v", err, r.router.questions)
	}
	if err := ask(kvpilotv1.Objective_OBJECTIVE_SLO); apierror.From(err).Reason != apierror.InvalidBody {
		t.Errorf("slo: %v", err)
	}
}

func TestTargetsByHeaders(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.1), nil }
	client := kvpilotv1.NewRoutingServiceClient(r.hop)
	for _, tc := range []struct {
		headers http.Header
		want    decision.Targets
		param   string
	}{
		{http.Header{"X-Kvpilot-Ttft-Ms": {"250"}}, decision.Targets{TTFT: 250 * time.Millisecond}, ""},
		{http.Header{"X-Llm-D-Slo-Ttft-Ms": {"1500"}, "X-Llm-D-Slo-Tpot-Ms": {"40.5"}}, decision.Targets{TTFT: 1500 * time.Millisecond, TPOT: 40500 * time.Microsecond}, ""},
		{http.Header{"X-Slo-Ttft-Ms": {"900"}, "X-Kvpilot-Ttft-Ms": {"300"}}, decision.Targets{TTFT: 300 * time.Millisecond}, ""},
		{http.Header{"X-Llm-D-Slo-Ttft-Ms": {"soon"}}, decision.Targets{}, "X-Llm-D-Slo-Ttft-Ms"},
		{http.Header{"X-Kvpilot-Ttft-Ms": {"-5"}}, decision.Targets{}, "X-Kvpilot-Ttft-Ms"},
		{http.Header{"X-Kvpilot-Ttft-Ms": {"NaN"}}, decision.Targets{}, "X-Kvpilot-Ttft-Ms"},
	} {
		before := len(r.router.questions)
		ctx := httpcall.With(t.Context(), &httpcall.Call{Call: intake.Call{Header: tc.headers, RequestID: "id", Received: time.Now()}})
		_, err := client.RouteBody(ctx, &httpbody.HttpBody{Data: []byte(`{"model":"m","prompt":"x"}`)})
		switch {
		case tc.param != "":
			if e := apierror.From(err); e.Reason != apierror.InvalidBody || e.Param != tc.param {
				t.Errorf("%v: %v (param %q), want a fault of %s", tc.headers, err, e.Param, tc.param)
			}
		case err != nil || len(r.router.questions) != before+1:
			t.Errorf("%v: %v", tc.headers, err)
		default:
			if got := r.router.questions[before].Options.Targets; got != tc.want {
				t.Errorf("%v: targets %+v, want %+v", tc.headers, got, tc.want)
			}
		}
	}
}

func TestTTFTDeadline(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	client := kvpilotv1.NewRoutingServiceClient(r.hop)
	r.router.choose = func(q *intake.Question) (*router.Answer, error) {
		if q.Options.Pinned != "" {
			return answer("r-1", 0.1), nil
		}
		return answer("r-1", 0.9, 0.4), nil
	}
	in := func(d time.Duration) *kvpilotv1.ChooseReplicaRequest {
		return &kvpilotv1.ChooseReplicaRequest{TtftDeadline: durationpb.New(d)}
	}
	if _, err := client.ChooseReplica(t.Context(), in(time.Second)); err != nil || len(r.router.questions) != 1 {
		t.Errorf("the choice makes it: %v after %d questions", err, len(r.router.questions))
	}
	if _, err := client.ChooseReplica(t.Context(), in(500*time.Millisecond)); err != nil || r.router.questions[2].Options.PinnedRank != 1 {
		t.Errorf("another rank makes it: %v", err)
	}
	_, err := client.ChooseReplica(t.Context(), in(100*time.Millisecond))
	if e := apierror.From(err); e.Reason != apierror.DeadlineUnreachable || e.RetryAfter <= 0 {
		t.Errorf("nobody makes it: %v", err)
	}
}

func TestRouteBody(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return answer("r-1", 0.1), nil }
	client := kvpilotv1.NewRoutingServiceClient(r.hop)
	ask := func(h http.Header) (*kvpilotv1.ChooseReplicaResponse, *intake.Question, error) {
		e := &httpcall.Call{Call: intake.Call{Header: h, RequestID: "id", Received: time.Now()}}
		out, err := client.RouteBody(httpcall.With(t.Context(), e), &httpbody.HttpBody{Data: []byte(`{"messages":`)})
		return out, r.router.questions[len(r.router.questions)-1], err
	}
	out, q, err := ask(http.Header{"X-Body-Truncated": {"12/900"}, "X-Kvpilot-Lease-Ms": {"5000"}, "X-Kvpilot-Allow": {"a, b"}, "X-Kvpilot-Weights": {"cpu_credit=0.5"}, "X-Kvpilot-Path": {"/v1/completions"}})
	if err != nil || !q.Truncated || q.FullSize != 900 || string(q.Body) != `{"messages":` || q.Lease != 5*time.Second || q.Booking != intake.Reserve || len(q.Options.Allowed) != 2 || q.Options.Weights["cpu_credit"] != 0.5 || q.Route != openai.RouteCompletions {
		t.Errorf("question %+v, %v", q, err)
	}
	if out.GetReservationId() == "" || out.GetRequestHeaders()["x-request-id"] != "id" || out.GetRequestHeaders()["x-data-parallel-rank"] != "" {
		t.Errorf("answer %v", out)
	}
	if out, q, err = ask(http.Header{"X-Kvpilot-Booking": {"dry-run"}, "X-Kvpilot-Explain": {"1"}}); err != nil || q.Booking != intake.DryRun || out.GetReservationId() != "" || out.GetDecision() == nil || q.Truncated {
		t.Errorf("a dry run: %+v, %v, %v", q, out, err)
	}
	for header, want := range map[string]intake.Booking{"": intake.Reserve, "reserve": intake.Reserve, "none": intake.BookNothing} {
		if _, q, err = ask(http.Header{"X-Kvpilot-Booking": {header}}); err != nil || q.Booking != want {
			t.Errorf("booking %q: %v, %v", header, q.Booking, err)
		}
	}
	for name, h := range map[string]http.Header{
		"lease": {"X-Kvpilot-Lease-Ms": {"soon"}}, "booking": {"X-Kvpilot-Booking": {"maybe"}},
		"weights": {"X-Kvpilot-Weights": {"cpu_credit"}}, "rank": {"X-Kvpilot-Pin": {"r@x"}},
	} {
		if _, _, err := ask(h); apierror.From(err) == nil || apierror.From(err).Reason != apierror.InvalidBody {
			t.Errorf("a bad %s: %v", name, err)
		}
	}
}

func TestLifecycle(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	for outcome, want := range map[load.Outcome]struct {
		effect kvpilotv1.Effect
		reason apierror.Reason
	}{
		load.Applied:   {effect: kvpilotv1.Effect_EFFECT_APPLIED},
		load.Duplicate: {effect: kvpilotv1.Effect_EFFECT_DUPLICATE},
		load.Stale:     {effect: kvpilotv1.Effect_EFFECT_STALE},
		load.Ended:     {reason: apierror.ReservationEnded},
		load.Lost:      {reason: apierror.ReservationEnded},
		load.Unknown:   {reason: apierror.ReservationNotFound},
	} {
		r.life.outcome = outcome
		got, err := client.ReportReservation(t.Context(), reports.Progress("x", 3))
		if got.GetEffect() != want.effect || want.reason != 0 && apierror.From(err).Reason != want.reason || want.reason == 0 && err != nil {
			t.Errorf("%s: %v, %v", outcome, got, err)
		}
	}
	r.life.outcome = load.Ended
	n := uint32(0)
	release := reports.Release("x", kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED)
	release.GetRelease().CachedTokens = &n
	got, err := client.ReportReservation(t.Context(), release)
	if err != nil || got.GetEffect() != kvpilotv1.Effect_EFFECT_DUPLICATE {
		t.Errorf("a second release: %v, %v", got, err)
	}
	if res := r.life.finished["x"]; res.End != decision.EndFailed || res.CachedTokens != 0 || res.OutputTokens != -1 {
		t.Errorf("result %+v", res)
	}
	if _, err := client.ReportReservation(t.Context(), reports.Bind("x")); apierror.From(err).Reason != apierror.InvalidBody || apierror.From(err).Param != "bind" {
		t.Errorf("a bind without a stream: %v", err)
	}
}

func TestReleaseNeedsAReason(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	for _, conn := range []grpc.ClientConnInterface{r.socket, r.hop} {
		client := kvpilotv1.NewRoutingServiceClient(conn)
		for reason, want := range map[kvpilotv1.ReleaseReason]decision.End{
			kvpilotv1.ReleaseReason_RELEASE_REASON_COMPLETED: decision.EndCompleted, kvpilotv1.ReleaseReason_RELEASE_REASON_CANCELED: decision.EndCanceled,
			kvpilotv1.ReleaseReason_RELEASE_REASON_REJECTED: decision.EndRejected, kvpilotv1.ReleaseReason_RELEASE_REASON_FAILED: decision.EndFailed,
		} {
			if _, err := client.ReportReservation(t.Context(), reports.Release(reason.String(), reason)); err != nil {
				t.Error(err)
			}
			if got := r.life.finished[reason.String()].End; got != want {
				t.Errorf("%s ended as %s", reason, got)
			}
		}
		for _, reason := range []kvpilotv1.ReleaseReason{0, 5, 10, -1} {
			_, err := client.ReportReservation(t.Context(), reports.Release("none", reason))
			if e := apierror.From(err); status.Code(err) != codes.InvalidArgument || e.Param != "release.reason" {
				t.Errorf("reason %d: %v", reason, err)
			}
		}
		_, err := client.ReportReservation(t.Context(), reports.Release("none", 0))
		if want := "must be RELEASE_REASON_COMPLETED, RELEASE_REASON_CANCELED,"; !strings.Contains(apierror.From(err).Message, want) {
			t.Errorf("%q does not name the reasons", apierror.From(err).Message)
		}
	}
	if _, ended := r.life.finished["none"]; ended {
		t.Error("a release without a reason ended its reservation")
	}
}

// A proxy that served a request at another replica than the chosen one, known here or not, is counted.
func TestARequestServedElsewhereIsCounted(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	r := newRig(t, grpcapi.DefaultConfig(), func(p *grpcapi.Params) {
		p.Scope = scope.Measured(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	})
	r.decisions.Add(answer("r-1", 0.25).Decision)
	client := kvpilotv1.NewRoutingServiceClient(r.socket)
	for _, step := range []struct {
		servedBy string
		want     int64
	}{{"", 0}, {"r-1", 0}, {"r-2", 1}, {"no such replica", 2}} {
		release := reports.Completed("d-1")
		release.GetRelease().ServedBy = step.servedBy
		if _, err := client.ReportReservation(t.Context(), release); err != nil {
			t.Fatal(err)
		}
		if got := counted(t, reader, "kvpilot.grpcapi.served_elsewhere"); got != step.want {
			t.Errorf("served by %q: counted %d, want %d", step.servedBy, got, step.want)
		}
	}
}

// counted is the sum of a counter.
func counted(t *testing.T, reader *sdkmetric.ManualReader, name string) (n int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
				for _, p := range sum.DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

func TestTrackReservation(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	stream, err := kvpilotv1.NewRoutingServiceClient(r.hop).TrackReservation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	say := func(in *kvpilotv1.ReservationReport) *kvpilotv1.TrackReservationResponse {
		t.Helper()
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
		out, err := stream.Recv()
		if err != nil || out.GetSequence() != in.GetSequence() {
			t.Fatalf("answer %v, %v", out, err)
		}
		return out
	}
	sequence := uint64(0)
	next := func(in *kvpilotv1.ReservationReport) *kvpilotv1.TrackReservationResponse {
		t.Helper()
		sequence++
		in.Sequence = sequence
		return say(in)
	}
	for _, valid := range []*kvpilotv1.ReservationReport{reports.Bind("a"), reports.Bind("b"), reports.FirstToken("a"), reports.Completed("a")} {
		if out := next(valid); out.GetReason() != apierror.Unspecified || out.GetReservation().GetEffect() != kvpilotv1.Effect_EFFECT_APPLIED {
			t.Errorf("%v: %v", valid, out)
		}
	}
	r.life.outcome = load.Unknown
	if out := next(reports.Bind("gone")); out.GetReason() != apierror.ReservationNotFound || out.GetMessage() == "" {
		t.Errorf("a fault ends its own report only: %v", out)
	}
	r.life.outcome = load.Applied
	for _, invalid := range []*kvpilotv1.ReservationReport{
		{}, {ReservationId: "b"}, reports.Bind(""), reports.Bind(strings.Repeat("x", 129)), reports.Release("b", 99), reports.Release("b", 0),
	} {
		if out := next(invalid); out.GetReason() != apierror.InvalidBody || out.GetMessage() == "" || out.GetReservation() != nil {
			t.Errorf("invalid report %v: %v", invalid, out)
		}
	}
	if _, freed := r.life.finished["b"]; freed {
		t.Error("an invalid report freed what is bound to the stream")
	}
	next(reports.Renew("b"))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if a, b := r.life.finished["a"].End, r.life.finished["b"].End; a != decision.EndCompleted || b != decision.EndCanceled {
		t.Errorf("a ended as %s, b as %s", a, b)
	}
	if _, gone := r.life.finished["gone"]; gone {
		t.Error("what could not be bound was released")
	}
}

func TestDecisionsCanBeReadBack(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	d := answer("r-1", 0.25, 0.5).Decision
	d.RequestID, d.Model, d.At = "req", "m", time.Unix(1700000000, 0)
	d.Candidates[0].EngineWaiting, d.Candidates[0].KVUsage = -1, 0.5
	r.decisions.Add(d)
	r.decisions.Finish(decision.Outcome{ID: "d-1", Replica: "r-1", End: decision.EndCompleted, TTFT: time.Second, PromptTokens: 48, OutputTokens: -1, CachedTokens: 0})
	client := kvpilotv1.NewRoutingServiceClient(r.hop)
	for _, in := range []*kvpilotv1.ExplainDecisionRequest{
		{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: "d-1"}},
		{Key: &kvpilotv1.ExplainDecisionRequest_RequestId{RequestId: "req"}},
	} {
		got, err := client.ExplainDecision(t.Context(), in)
		if err != nil || len(got.GetDecisions()) != 1 {
			t.Fatalf("%v: %v, %v", in, got, err)
		}
		e := got.GetDecisions()[0]
		if e.GetOutcome().GetEnd() != kvpilotv1.End_END_COMPLETED || e.GetOutcome().CachedTokens == nil || e.GetOutcome().OutputTokens != nil {
			t.Errorf("outcome %v", e.GetOutcome())
		}
		c := e.GetCandidates()[0]
		if c.EngineWaiting != nil || c.GetKvUsage() != 0.5 || c.GetTtft().AsDuration() != 250*time.Millisecond || e.GetTime().AsTime().Unix() != 1700000000 {
			t.Errorf("candidate %v", c)
		}
	}
	if _, err := client.ExplainDecision(t.Context(), &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: "x"}}); apierror.From(err).Reason != apierror.DecisionNotFound {
		t.Errorf("unknown: %v", err)
	}
	if got, err := client.ListDecisions(t.Context(), &kvpilotv1.ListDecisionsRequest{Model: "other"}); err != nil || len(got.GetDecisions()) != 0 {
		t.Errorf("another model's: %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := client.WatchDecisions(ctx, &kvpilotv1.WatchDecisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1)
	go func() {
		m, err := watch.Recv()
		if err != nil {
			seen <- err.Error()
			return
		}
		seen <- m.GetDecision().GetDecisionId()
	}()
	for { // until the subscription is there
		next := *d
		next.ID = "d-2"
		r.decisions.Add(&next)
		select {
		case got := <-seen:
			if got != "d-2" {
				t.Errorf("watch saw %q", got)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestWatchesEndWhenTheRouterLeaves(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	watch, err := kvpilotv1.NewRoutingServiceClient(r.socket).WatchDecisions(t.Context(), &kvpilotv1.WatchDecisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Header(); err != nil {
		t.Fatal(err)
	}
	r.api.Leave()
	r.api.Leave()
	if _, err := watch.Recv(); apierror.From(err).Reason != apierror.ShuttingDown {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestEveryPolicyIsDescribed(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	got, err := kvpilotv1.NewRoutingServiceClient(r.hop).ListPolicies(t.Context(), &kvpilotv1.ListPoliciesRequest{})
	if err != nil || len(got.GetPolicies()) != len(decision.Policies()) || !got.GetPolicies()[0].GetDefault() {
		t.Fatalf("%v, %v", got, err)
	}
	for _, p := range got.GetPolicies() {
		if p.GetDescription() == "" {
			t.Errorf("%s has no description", p.GetName())
		}
	}
	if got := got.GetPolicies()[0].GetParams(); got["session_bonus"] != .05 {
		t.Errorf("the numbers of predicted-ttft are %v", got)
	}
}

func TestMetadataNamesAreOneRule(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error { return to.Write(nil) }
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x_session_id", "s", "blob-bin", "\x00\x01")
	stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).Completions(ctx, &httpbody.HttpBody{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := recvAll(stream); err != nil {
		t.Fatal(err)
	}
	h := r.router.call.Header
	if session, _ := openai.SessionFrom(h, []string{"x-session-id"}); session != "s" {
		t.Errorf("the session is not found in %v", h)
	}
	for name := range h {
		if name == "Blob-Bin" || name == "User-Agent" || name[0] == ':' {
			t.Errorf("transport metadata %q is passed on", name)
		}
	}
}
