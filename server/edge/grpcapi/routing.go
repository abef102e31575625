package grpcapi

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/api/httpbody"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// routing decides without answering.
type routing struct {
	kvpilotv1.UnimplementedRoutingServiceServer
	api *API
}

func (s *routing) ChooseReplica(ctx context.Context, in *kvpilotv1.ChooseReplicaRequest) (*kvpilotv1.ChooseReplicaResponse, error) {
	if who := s.api.caller(ctx); !in.GetDryRun() && !who.May(caller.Route) {
		return nil, s.api.permit(who, kvpilotv1.RoutingService_ChooseReplica_FullMethodName, &methodInfo{roles: caller.Route}, originOf(ctx))
	}
	if in.GetDryRun() && !trace.SpanContextFromContext(ctx).IsValid() {
		var dry trace.Span
		ctx, dry = span.Start(ctx, s.api.Tracer, span.DryRun, trace.SpanKindInternal)
		defer dry.End()
	}
	o, err := s.api.overrides(in.GetCandidates(), in.GetPolicy())
	if err != nil {
		return nil, err
	}
	q := s.api.question(ctx)
	q.Options = o
	q.Model, q.Adapter, q.Salt, q.Session = in.GetModel(), in.GetAdapter(), in.GetCacheSalt(), in.GetSessionId()
	q.Priority, q.ExpectedOutput = int(in.GetPriority()), int(in.GetExpectedOutputTokens())
	q.Explain = in.GetExplain()
	q.ReturnIDs = in.GetReturnTokenIds()
	if in.GetDryRun() && in.GetReserve() {
		return nil, invalid("reserve", "a dry run books nothing")
	}
	q.Booking = booking(in.GetDryRun(), in.Reserve == nil || in.GetReserve(), in.GetRequestId() != "")
	q.Lease = in.GetLease().AsDuration()
	switch in.GetReports() {
	case kvpilotv1.Reports_REPORTS_END:
		q.Reports = router.ReportsEnd
	case kvpilotv1.Reports_REPORTS_ALL:
		q.Reports = router.ReportsFirstToken
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
	if q.Booking == router.DryRun {
		if out, passed, err := asDecider(ctx, s.api, q.Model, in.GetBody().GetJson(), func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ChooseReplicaResponse, error) {
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
		out.Decision = s.api.explainChosen(ctx, a.Decision)
	}
	if in.GetReturnTokenIds() && a.Encoding != nil && !a.Encoding.Partial && len(a.Encoding.IDs) > 0 {
		out.TokenIds = &kvpilotv1.TokenIds{Ids: a.Encoding.IDs}
	}
	return out, nil
}

func (s *routing) RouteBody(ctx context.Context, in *httpbody.HttpBody) (*kvpilotv1.ChooseReplicaResponse, error) {
	q := s.api.question(ctx)
	h := q.Header
	var err error
	if q.Options, err = s.api.options(h); err != nil {
		return nil, err
	}
	q.Body = in.GetData()
	if said, ok := h[headerTruncated]; ok { // its presence counts, with any value
		q.Truncated, q.FullSize = true, fullSize(said)
	}
	if path := first(h, headerPath); path != "" {
		if q.Route = openai.RouteOf(path); !q.Route.Generates() {
			q.Route = openai.RouteAny
		}
	}
	dry, err := flag(h, headerDryRun, false)
	if err != nil {
		return nil, err
	}
	reserve, err := flag(h, headerReserve, !dry)
	if err != nil {
		return nil, err
	}
	q.Booking = booking(dry, reserve, false)
	explain, err := flag(h, headerExplain, false)
	if err != nil {
		return nil, err
	}
	q.Explain = explain
	if q.Lease, err = lease(h); err != nil {
		return nil, err
	}
	switch first(h, headerReports) {
	case "":
	case "all":
		q.Reports = router.ReportsFirstToken
	case "end":
		q.Reports = router.ReportsEnd
	default:
		return nil, invalid(headerReports, "must be all or end")
	}
	if q.Booking == router.DryRun {
		if out, passed, err := asDecider(ctx, s.api, "", q.Body, func(ctx context.Context, c kvpilotv1.RoutingServiceClient) (*kvpilotv1.ChooseReplicaResponse, error) {
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
		out.Decision = s.api.explainChosen(ctx, a.Decision)
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

// question is what every call of this service begins with.
func (a *API) question(ctx context.Context) *router.Question {
	c := sent(ctx)
	return &router.Question{
		Header: c.Header, RequestID: c.RequestID, Received: c.Received,
		Caller:  router.Caller{Tenant: a.tenant(ctx), ShowOverlap: a.observes(ctx), Steers: a.caller(ctx).May(caller.Steer)},
		Options: chooser.Options{PinnedRank: -1},
	}
}

// booking is what a caller wants to be booked, under its request id if once.
func booking(dry, reserve, once bool) router.Booking {
	switch {
	case dry:
		return router.DryRun
	case reserve && once:
		return router.ReserveOnce
	case reserve:
		return router.Reserve
	}
	return router.BookNothing
}

func setBody(q *router.Question, b *kvpilotv1.RequestBody) {
	q.Body, q.Truncated = b.GetJson(), b.GetTruncated()
	switch b.GetApi() {
	case kvpilotv1.ApiKind_API_KIND_CHAT_COMPLETIONS:
		q.Route = openai.RouteChat
	case kvpilotv1.ApiKind_API_KIND_COMPLETIONS:
		q.Route = openai.RouteCompletions
	case kvpilotv1.ApiKind_API_KIND_RESPONSES:
		q.Route = openai.RouteResponses
	case kvpilotv1.ApiKind_API_KIND_MESSAGES:
		q.Route = openai.RouteMessages
	case kvpilotv1.ApiKind_API_KIND_UNSPECIFIED:
		q.Route = openai.RouteAny
	}
}

// choose asks the router; a choice that cannot make the caller's deadline is given up for the
// fastest candidate, and rejected when that one cannot make it either.
func (s *routing) choose(ctx context.Context, q *router.Question, deadline time.Duration) (*router.Answer, error) {
	a, err := s.api.Router.Choose(ctx, q)
	if err != nil || deadline <= 0 || a.Duplicate {
		return a, err
	}
	limit := deadline.Seconds()
	pick := a.Decision.Pick()
	if pick == nil || pick.TTFT <= limit {
		return a, nil // policies that predict nothing leave zero
	}
	a.Release(chooser.Result{End: decision.EndHandedOver, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
	fastest := fastest(s.api.explainChosen(ctx, a.Decision))
	if fastest == nil || fastest.GetTtftMs() > limit*milli {
		wait := time.Duration((pick.TTFT - limit) * float64(time.Second))
		return nil, apierror.New(apierror.DeadlineUnreachable, "no replica can give the first token in time", nil, apierror.WithRetryAfter(max(wait, time.Second)))
	}
	q.Options.Pinned, q.Options.PinnedRank = replica.ID(fastest.GetReplicaId()), int(fastest.GetRank())
	return s.api.Router.Choose(ctx, q)
}

func fastest(d *kvpilotv1.Decision) *kvpilotv1.Candidate {
	var best *kvpilotv1.Candidate
	for _, c := range d.GetCandidates() {
		if c.GetVeto() == "" && c.GetTtftMs() > 0 && (best == nil || c.GetTtftMs() < best.GetTtftMs()) {
			best = c
		}
	}
	return best
}

// chosen is the flat answer.
func chosen(ctx context.Context, a *router.Answer, q *router.Question) *kvpilotv1.ChooseReplicaResponse {
	d := a.Decision
	out := &kvpilotv1.ChooseReplicaResponse{
		Host: a.Host, Port: uint32(a.Port), Url: a.Replica.URL,
		ReplicaId: string(a.Replica.ID), Rank: uint32(a.Rank), Model: a.Served,
		DecisionId: d.ID, Policy: string(d.Policy), Reason: string(d.Reason),
		PromptTokens: uint32(d.PromptTokens), RequestHeaders: map[string]string{}, Tenant: q.Tenant, Labels: a.Replica.Labels,
	}
	switch {
	case !q.Steers && openai.MarksAddress(q.RequestID): // an engine's connector would call the address
		out.RequestHeaders["x-request-id"] = d.ID
	case q.RequestID != "":
		out.RequestHeaders["x-request-id"] = q.RequestID
	}
	if q.Booking != router.DryRun {
		handTrace(ctx, a.Decision, out.RequestHeaders)
	}
	if len(a.Replica.Slots) > 1 {
		out.RequestHeaders["x-data-parallel-rank"] = strconv.Itoa(a.Rank)
	}
	if out.CacheSalt = a.Salt; a.Lowered {
		out.RequestHeaders["x-vllm-priority"] = strconv.Itoa(a.Priority)
	}
	if a.HideOverlap {
		out.Reason = "" // like the predicted time, it shows what the replica holds
	} else if pick := d.Pick(); pick != nil {
		out.OverlapGpuTokens, out.OverlapCpuTokens, out.OverlapDiskTokens = pick.GPU, pick.CPU, pick.Disk
		out.PredictedTtftMs = pick.TTFT * 1000
	}
	if q.Booking.Reserves() {
		out.ReservationId, out.Attempt, out.LeaseMs = d.ID, uint32(d.Attempt), uint32(a.Lease.Milliseconds())
		if out.Effect = kvpilotv1.Effect_EFFECT_APPLIED; a.Duplicate {
			out.Effect = kvpilotv1.Effect_EFFECT_DUPLICATE
		}
	}
	return out
}
