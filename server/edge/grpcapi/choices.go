package grpcapi

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// choices answers questions for a replica.
type choices struct {
	router    choosing
	calls     calls
	admission *admission
	others    *others
	metrics   *metrics
	// tracer records dry runs that no other span is above of.
	tracer trace.Tracer
}

func (s *choices) ChooseReplica(ctx context.Context, in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
	isDry := in.GetBooking() == kvpilotv1.Booking_BOOKING_DRY_RUN
	if who := s.calls.senders.of(ctx); !isDry && !who.May(caller.Route) {
		return nil, s.admission.permit(who, kvpilotv1.RoutingService_ChooseReplica_FullMethodName, &methodInfo{roles: caller.Route}, originOf(ctx))
	}
	if isDry && !trace.SpanContextFromContext(ctx).IsValid() {
		var dry trace.Span
		ctx, dry = span.Start(ctx, s.tracer, span.DryRun, trace.SpanKindInternal)
		defer dry.End()
	}
	o, err := s.calls.overrides.of(in.GetCandidates(), in.GetPolicy())
	if err != nil {
		return nil, err
	}
	q := s.calls.question(ctx)
	q.Options = o
	q.Model, q.Adapter, q.Salt, q.Session = in.GetModel(), in.GetAdapter(), in.GetCacheSalt(), in.GetSessionId()
	q.Priority, q.ExpectedOutput = int(in.GetPriority()), int(in.GetExpectedOutputTokens())
	q.Explain = in.GetExplain()
	q.ReturnIDs = in.GetReturnTokenIds()
	q.Booking = booking(in.GetBooking(), in.GetRequestId() != "")
	q.Lease = in.GetLease().AsDuration()
	switch in.GetReports() {
	case kvpilotv1.Reports_REPORTS_END:
		q.Reports = intake.ReportsEnd
	case kvpilotv1.Reports_REPORTS_ALL:
		q.Reports = intake.ReportsFirstToken
	case kvpilotv1.Reports_REPORTS_UNSPECIFIED:
	}
	q.RequestID = cmp.Or(in.GetRequestId(), q.RequestID)
	switch p := in.GetPrompt().(type) {
	case *kvpilotv1.ChooseReplicaRequest_TokenIds:
		q.IDs = p.TokenIds.GetIds()
	case *kvpilotv1.ChooseReplicaRequest_Text:
		q.Text = p.Text
	case *kvpilotv1.ChooseReplicaRequest_Body:
		setBody(q, p.Body)
	}
	if q.Booking == intake.DryRun {
		if out, passed, err := asDecider(ctx, s.others, q.Model, in.GetBody().GetJson(), func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ChooseReplicaResponse, error) {
			return c.ChooseReplica(ctx, in)
		}); passed {
			return out, err
		}
	}
	if out, passed, err := s.atHome(ctx, q, in); passed {
		return out, err
	}
	a, err := s.choose(ctx, q, in.GetTtftDeadline().AsDuration())
	if err != nil {
		return nil, err
	}
	out := chosen(ctx, a, q)
	if in.GetExplain() {
		out.Decision = s.others.explainChosen(ctx, a.Decision)
	}
	if in.GetReturnTokenIds() && a.Encoding != nil && !a.Encoding.Partial && len(a.Encoding.IDs) > 0 {
		out.TokenIds = &kvpilotv1.TokenIds{Ids: a.Encoding.IDs}
	}
	return out, nil
}

func (s *choices) RouteBody(ctx context.Context, in *httpbody.HttpBody) (*kvpilotv1.ChooseReplicaResponse, error) {
	q := s.calls.question(ctx)
	h := q.Header
	var err error
	if q.Options, err = s.calls.overrides.fromHeader(h); err != nil {
		return nil, err
	}
	q.Body = in.GetData()
	if said, ok := h[headerTruncated]; ok { // its presence counts, with any value
		q.Truncated, q.FullSize = true, fullSize(said)
	}
	if path := firstHeader(h, headerPath); path != "" {
		if q.Route = openai.RouteOf(path); !q.Route.Generates() {
			q.Route = openai.RouteAny
		}
	}
	if q.Booking, err = bookingHeader(h); err != nil {
		return nil, err
	}
	explain, err := flagHeader(h, headerExplain, false)
	if err != nil {
		return nil, err
	}
	q.Explain = explain
	if q.Lease, err = leaseHeader(h); err != nil {
		return nil, err
	}
	switch firstHeader(h, headerReports) {
	case "":
	case "all":
		q.Reports = intake.ReportsFirstToken
	case "end":
		q.Reports = intake.ReportsEnd
	default:
		return nil, invalid(headerReports, "must be all or end")
	}
	if q.Booking == intake.DryRun {
		if out, passed, err := asDecider(ctx, s.others, "", q.Body, func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ChooseReplicaResponse, error) {
			return c.RouteBody(ctx, in)
		}); passed {
			return out, err
		}
	}
	a, err := s.choose(ctx, q, 0)
	if err != nil {
		return nil, err
	}
	out := chosen(ctx, a, q)
	if explain {
		out.Decision = s.others.explainChosen(ctx, a.Decision)
	}
	return out, nil
}

// fullSize is the size of the whole body when a proxy sent its beginning, from X-Body-Truncated: "8/90000". It is 0 when the
// header has none.
func fullSize(said []string) int64 {
	if len(said) == 0 {
		return 0
	}
	_, full, _ := strings.Cut(said[0], "/")
	n, err := strconv.ParseInt(strings.TrimSpace(full), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// atHome has the router that keeps a question's name answer it, so that the fleet books it once. passed is false when this router
// answers: it is the one, it has booked the question already, or the other does not answer.
func (s *choices) atHome(ctx context.Context, q *intake.Question, in *kvpilotv1.ChooseReplicaRequest) (out *kvpilotv1.ChooseReplicaResponse, passed bool, err error) {
	fleet := s.others.of(ctx)
	if fleet == nil || q.Booking != intake.ReserveOnce || s.router.Claimed(q.Tenant, q.RequestID) {
		return nil, false, nil
	}
	home := fleet.Home(q.Tenant, q.RequestID)
	if home == nil {
		return nil, false, nil
	}
	out, err = home.Routing.ChooseReplica(s.others.onward(ctx), in)
	if err = forward.Error(err); err != nil && forward.IsUnreachable(err) {
		s.metrics.Homeless.Add(ctx, 1)
		return nil, false, nil
	}
	return out, true, err
}

// choose asks the router; a choice that cannot make the caller's deadline is given up for the
// fastest candidate, and rejected when that one cannot make it either.
func (s *choices) choose(ctx context.Context, q *intake.Question, deadline time.Duration) (*router.Answer, error) {
	a, err := s.router.Choose(ctx, q)
	if err != nil || deadline <= 0 || a.Duplicate {
		return a, err
	}
	limit := deadline.Seconds()
	pick := a.Decision.Pick()
	if pick == nil || pick.TTFT <= limit {
		return a, nil // policies that predict nothing leave zero
	}
	a.Release(chooser.ResultOf(decision.EndHandedOver))
	fastest := fastest(s.others.explainChosen(ctx, a.Decision))
	if fastest == nil || fastest.GetTtft().AsDuration().Seconds() > limit {
		wait := time.Duration((pick.TTFT - limit) * float64(time.Second))
		return nil, apierror.New(apierror.DeadlineUnreachable, "no replica can give the first token in time", nil, apierror.WithRetryAfter(max(wait, time.Second)))
	}
	q.Options.Pinned, q.Options.PinnedRank = replica.ID(fastest.GetReplicaId()), int(fastest.GetRank())
	return s.router.Choose(ctx, q)
}

func fastest(d *kvpilotv1.Decision) *kvpilotv1.Candidate {
	var best *kvpilotv1.Candidate
	for _, c := range d.GetCandidates() {
		if c.GetVeto() == kvpilotv1.Veto_VETO_UNSPECIFIED && c.GetTtft() != nil && (best == nil || c.GetTtft().AsDuration() < best.GetTtft().AsDuration()) {
			best = c
		}
	}
	return best
}

// chosen is the flat answer.
func chosen(ctx context.Context, a *router.Answer, q *intake.Question) *kvpilotv1.ChooseReplicaResponse {
	d := a.Decision
	out := &kvpilotv1.ChooseReplicaResponse{
		Host: a.Host, Port: uint32(a.Port), Url: a.Replica.URL,
		ReplicaId: string(a.Replica.ID), Rank: uint32(a.Rank), Model: a.Served,
		DecisionId: d.ID, Policy: string(d.Policy), Reason: reasonProto(d.Reason),
		PromptTokens: uint32(d.PromptTokens), RequestHeaders: map[string]string{}, Tenant: q.Tenant, Labels: a.Replica.Labels,
	}
	switch {
	case !q.Steers && openai.MarksAddress(q.RequestID): // an engine's connector would call the address
		out.RequestHeaders["x-request-id"] = d.ID
	case q.RequestID != "":
		out.RequestHeaders["x-request-id"] = q.RequestID
	}
	if q.Booking != intake.DryRun {
		handTrace(ctx, a.Decision, out.RequestHeaders)
	}
	if len(a.Replica.Slots) > 1 {
		out.RequestHeaders["x-data-parallel-rank"] = strconv.Itoa(a.Rank)
	}
	if out.CacheSalt = a.Salt; a.Lowered {
		out.RequestHeaders["x-vllm-priority"] = strconv.Itoa(a.Priority)
	}
	if a.HideOverlap {
		out.Reason = kvpilotv1.ChoiceReason_CHOICE_REASON_UNSPECIFIED // like the predicted time, it shows what the replica holds
	} else if pick := d.Pick(); pick != nil {
		out.OverlapGpuTokens, out.OverlapCpuTokens, out.OverlapDiskTokens = pick.GPU, pick.CPU, pick.Disk
		out.PredictedTtft = seconds(pick.TTFT)
	}
	if q.Booking.Reserves() {
		out.ReservationId, out.Attempt, out.Lease = d.ID, uint32(d.Attempt), durationpb.New(a.Lease)
		if out.Effect = kvpilotv1.Effect_EFFECT_APPLIED; a.Duplicate {
			out.Effect = kvpilotv1.Effect_EFFECT_DUPLICATE
		}
	}
	return out
}

// ScoreOverlap makes a dry run and returns the overlaps it found.
func (s *choices) ScoreOverlap(ctx context.Context, in *kvpilotv1.ScoreOverlapRequest) (*kvpilotv1.ScoreOverlapResponse, error) {
	q := s.calls.question(ctx)
	q.Model, q.Adapter, q.Salt, q.Booking, q.Explain = in.GetModel(), in.GetAdapter(), in.GetCacheSalt(), intake.DryRun, true
	switch p := in.GetPrompt().(type) {
	case *kvpilotv1.ScoreOverlapRequest_TokenIds:
		q.IDs = p.TokenIds.GetIds()
	case *kvpilotv1.ScoreOverlapRequest_Text:
		q.Text = p.Text
	case *kvpilotv1.ScoreOverlapRequest_Body:
		setBody(q, p.Body)
	}
	if out, passed, err := asDecider(ctx, s.others, q.Model, in.GetBody().GetJson(), func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ScoreOverlapResponse, error) {
		return c.ScoreOverlap(ctx, in)
	}); passed {
		return out, err
	}
	a, err := s.router.Choose(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &kvpilotv1.ScoreOverlapResponse{PromptTokens: uint32(a.Decision.PromptTokens)}
	list := a.Decision.List()
	for i := range list {
		c := &list[i]
		out.Ranks = append(out.Ranks, &kvpilotv1.RankOverlap{
			ReplicaId: string(c.Replica), Rank: uint32(c.Rank), Overlap: overlapProto(&c.Overlap),
			Feed: feedProto(c.Feed), BlockSize: c.BlockSize,
		})
	}
	return out, nil
}

// policies lists how the router can choose.
type policies struct{ choice choice }

func (s policies) ListPolicies(context.Context, *kvpilotv1.ListPoliciesRequest) (*kvpilotv1.ListPoliciesResponse, error) {
	choice := s.choice.Config()
	params, err := selector.Apply(selector.DefaultParams(), choice.Weights)
	if err != nil {
		return nil, err
	}
	numbers := selector.Numbers(&params)
	out := &kvpilotv1.ListPoliciesResponse{}
	for _, p := range decision.Policies() {
		about := aboutOf(p)
		entry := &kvpilotv1.Policy{Name: string(p), Description: about.text, Default: p == choice.Policy, Params: map[string]float64{}}
		for _, name := range about.params {
			entry.Params[name] = numbers[name]
		}
		if entry.Default {
			out.Policies = append([]*kvpilotv1.Policy{entry}, out.Policies...)
		} else {
			out.Policies = append(out.Policies, entry)
		}
	}
	return out, nil
}

// about describes a policy for people.
type about struct {
	text   string
	params []string
}

func aboutOf(p decision.Policy) about {
	switch p {
	case decision.PredictedTTFT:
		return about{"The rank with the lowest predicted time to the first token, plus the delay that the choice adds to other requests, which weighs more as the fleet fills.",
			[]string{"temperature", "session_bonus", "split_bonus"}}
	case decision.OverlapLoad:
		return about{"Cached blocks against booked load, as a sum.", []string{"temperature", "cpu_credit", "disk_credit", "overlap_credit", "credit_decay", "prefill_scale", "request_weight"}}
	case decision.WeightedScorers:
		return about{"A weighted sum of scores for cached prefix, queue and KV use.", []string{"temperature", "cpu_credit", "disk_credit", "prefix_weight", "queue_weight", "kv_weight"}}
	case decision.PrefixAffinity:
		return about{"The rank that received the longest prefix of the text, unless load is too uneven.", []string{"match_threshold", "imbalance_threshold"}}
	case decision.ConsistentHash:
		return about{"The rank that owns the session on a hash ring.", nil}
	case decision.LeastTokens:
		return about{"The rank with the fewest uncached prompt tokens queued.", nil}
	case decision.LeastRequests:
		return about{"The rank with the fewest requests in flight.", nil}
	case decision.PowerOfTwo:
		return about{"The less loaded of two random ranks.", nil}
	case decision.RoundRobin:
		return about{"Each rank in turn.", nil}
	case decision.Random:
		return about{"Any rank.", nil}
	case decision.PolicyOther: // of another router's decision
	}
	return about{}
}

// handTrace gives the caller the headers that put the replica's spans below the choice, in W3C's form. A choice that is not traced
// gives none.
func handTrace(ctx context.Context, d *decision.Decision, to map[string]string) {
	here := trace.SpanContextFromContext(ctx)
	if !here.IsValid() {
		return
	}
	if id, err := trace.SpanIDFromHex(d.SpanID); err == nil && d.TraceID == here.TraceID().String() {
		here = here.WithSpanID(id)
	}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(ctx, here), propagation.MapCarrier(to))
}

// booking is the booking that a caller wants, under its request id if once.
func booking(in kvpilotv1.Booking, once bool) intake.Booking {
	switch in {
	case kvpilotv1.Booking_BOOKING_DRY_RUN:
		return intake.DryRun
	case kvpilotv1.Booking_BOOKING_NONE:
		return intake.BookNothing
	case kvpilotv1.Booking_BOOKING_UNSPECIFIED, kvpilotv1.Booking_BOOKING_RESERVE:
	}
	if once {
		return intake.ReserveOnce
	}
	return intake.Reserve
}
