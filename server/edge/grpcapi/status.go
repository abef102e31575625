package grpcapi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// choice is how the router chooses, and its learned speeds; *chooser.Chooser is one.
type choice interface {
	Config() chooser.Config
	// Waiting returns the number of requests in the hold queue.
	Waiting() int
}

// rates are the learned speeds of the ranks; *chooser.Chooser has them.
type rates interface {
	Rates() []chooser.Rate
}

// Health is the router's.
type Health interface {
	// Ready returns why the router should get no requests now; nil when it should.
	Ready() error
}

// Links are templates of URLs of other programs; an empty one means that there is none.
type Links struct {
	// Trace is of a trace, with {trace_id}.
	Trace string
	// Dashboard is of a dashboard, with {model} and {replica}.
	Dashboard string
}

// status is RouterService: it reports the router's settings and state.
type status struct {
	kvpilotv1.UnimplementedRouterServiceServer
	version string
	links   Links
	began   time.Time
	ranks   *Ranks
	choice  choice
	health  Health
	tokens  *tokenizer.Pool
	history *history.History
	traces  *history.Traces
	others  *others
	trail   trail
}

func (s *status) GetStatus(context.Context, *kvpilotv1.GetStatusRequest) (*kvpilotv1.GetStatusResponse, error) {
	choice, index := s.choice.Config(), s.ranks.Index.Stats()
	out := &kvpilotv1.GetStatusResponse{
		Time: timestamppb.Now(), Version: s.version, Uptime: durationpb.New(time.Since(s.began)),
		Policy: string(choice.Policy), ShadowPolicy: string(choice.Shadow),
		Booked: uint32(s.ranks.Book.Live()), Held: uint32(s.choice.Waiting()),
		Index:  &kvpilotv1.IndexStatus{Blocks: uint64(index.Blocks), MaxBlocks: uint64(index.MaxBlocks), Bytes: uint64(index.Bytes), Cut: index.Cut},
		Minute: stepProto(s.history.Minute()),
		Links:  &kvpilotv1.Links{Trace: s.links.Trace, Dashboard: s.links.Dashboard},
	}
	if err := s.health.Ready(); err != nil {
		out.NotReady = err.Error()
	}
	for _, m := range s.tokens.Parity() {
		out.Parity = append(out.Parity, &kvpilotv1.TokenParity{Model: m.Model, State: parityProto(m.State), Detail: m.Detail})
	}
	return out, nil
}

func (s *status) GetHistory(ctx context.Context, in *kvpilotv1.GetHistoryRequest) (*kvpilotv1.GetHistoryResponse, error) {
	if err := hold(ctx, answerMemory); err != nil {
		return nil, err
	}
	out := &kvpilotv1.GetHistoryResponse{}
	for _, step := range s.history.Since(in.GetSince().AsTime(), in.GetStep().AsDuration() > time.Second) {
		out.Steps = append(out.Steps, stepProto(step))
	}
	return out, nil
}

func stepProto(s history.Step) *kvpilotv1.HistoryStep {
	out := &kvpilotv1.HistoryStep{
		Time: timestamppb.New(time.Unix(s.T, 0)), Counted: durationpb.New(time.Duration(s.Seconds) * time.Second), Requests: uint32(s.Requests), Failed: uint32(s.Failed),
		PromptTokens: uint64(s.PromptTokens), CachedTokens: uint64(s.CachedTokens), CountedTokens: uint64(s.CountedTokens),
		TtftP50: seconds(s.P50 / milli), TtftP99: seconds(s.P99 / milli), ShadowRegret: seconds(s.Regret / milli), Unserved: map[string]uint32{},
		TpotP50: seconds(s.TPOT50 / milli), TpotP99: seconds(s.TPOT99 / milli), Held: uint32(s.Held), HeldMax: limitProto(s.HeldMost),
		Attempts: uint32(s.Attempts), Retries: uint32(s.Retries), HandOvers: uint32(s.HandOvers), Continued: uint32(s.Continued),
	}
	for reason, n := range s.Unserved {
		out.Unserved[reason] = uint32(n)
	}
	if s.Agreed >= 0 {
		out.ShadowAgreed = &s.Agreed
	}
	return out
}

func (s *status) ListTraces(ctx context.Context, _ *kvpilotv1.ListTracesRequest) (*kvpilotv1.ListTracesResponse, error) {
	if err := hold(ctx, answerMemory); err != nil {
		return nil, err
	}
	s.trail.recordRead(ctx, kvpilotv1.RouterService_ListTraces_FullMethodName, "")
	out := &kvpilotv1.ListTracesResponse{}
	for _, spans := range s.traces.Last() {
		out.Traces = append(out.Traces, traceProto(spans))
	}
	return out, nil
}

// traceProto turns spans into the data of a waterfall. The first local span ended last.
func traceProto(spans []sdktrace.ReadOnlySpan) *kvpilotv1.Trace {
	root := spans[len(spans)-1]
	began := root.StartTime()
	out := &kvpilotv1.Trace{
		TraceId: root.SpanContext().TraceID().String(), Name: root.Name(),
		Time: timestamppb.New(began), Duration: durationpb.New(root.EndTime().Sub(began)),
	}
	for _, s := range spans {
		one := &kvpilotv1.Span{
			SpanId: s.SpanContext().SpanID().String(), Name: s.Name(),
			Start: durationpb.New(s.StartTime().Sub(began)), Duration: durationpb.New(s.EndTime().Sub(s.StartTime())),
			Failed: s.Status().Code == codes.Error, Attributes: map[string]string{},
		}
		if s.Parent().IsValid() {
			one.ParentSpanId = s.Parent().SpanID().String()
		}
		for _, a := range s.Attributes() {
			one.Attributes[string(a.Key)] = attributeText(a.Value)
		}
		for _, e := range s.Events() {
			name := e.Name
			for _, a := range e.Attributes {
				name += " " + attributeText(a.Value)
			}
			one.Events = append(one.Events, &kvpilotv1.SpanEvent{Name: name, At: durationpb.New(e.Time.Sub(began))})
		}
		out.Failed = out.Failed || one.Failed
		out.Spans = append(out.Spans, one)
	}
	slices.SortStableFunc(out.Spans, func(a, b *kvpilotv1.Span) int {
		return cmp.Compare(a.GetStart().AsDuration(), b.GetStart().AsDuration())
	})
	return out
}

// attributeText is an attribute's value for people. A message takes UTF-8 only.
func attributeText(v attribute.Value) string {
	text := v.String()
	if v.Type() == attribute.STRINGSLICE {
		text = strings.Join(v.AsStringSlice(), ", ")
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

func (s *status) ListRouters(ctx context.Context, in *kvpilotv1.ListRoutersRequest) (*kvpilotv1.ListRoutersResponse, error) {
	self := &kvpilotv1.Router{Self: true, State: kvpilotv1.RouterState_ROUTER_STATE_ALIVE, Connected: true, Report: s.report(), Started: timestamppb.New(s.began)}
	out := &kvpilotv1.ListRoutersResponse{Routers: []*kvpilotv1.Router{self}}
	if s.others.peers != nil {
		describe(self, s.others.peers.Self())
	}
	fleet := s.others.of(ctx)
	if fleet == nil {
		self.Decides = s.others.pools.models()
		return out, nil
	}
	byID := map[string]*kvpilotv1.Router{self.GetRouterId(): self}
	for _, m := range fleet.Members() {
		r := &kvpilotv1.Router{Connected: fleet.Peer(m.ID) != nil, State: routerState(m.State)}
		describe(r, m)
		byID[m.ID] = r
		out.Routers = append(out.Routers, r)
	}
	for _, model := range s.others.pools.models() {
		if r := byID[fleet.Decider(model)]; r != nil {
			r.Decides = append(r.Decides, model)
		}
	}
	others, _ := fleet.Others()
	answers, _ := forward.Gather(s.others.onward(ctx), others, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.ListRoutersResponse, error) {
		return p.Router.ListRouters(ctx, in)
	})
	for _, answer := range answers {
		if list := answer.Says.GetRouters(); len(list) > 0 {
			byID[answer.From.ID].Report = list[0].GetReport()
		}
	}
	return out, nil
}

// report is this router's report about itself.
func (s *status) report() *kvpilotv1.RouterReport {
	out := &kvpilotv1.RouterReport{Version: s.version, Able: true, Requests: uint32(s.ranks.Book.Live()), Held: uint32(s.choice.Waiting())}
	if err := s.health.Ready(); err != nil {
		out.NotReady = err.Error()
	}
	if s.others.peers != nil {
		out.Able, out.Requests = s.others.peers.Able(), uint32(s.others.peers.Requests())
	}
	return out
}

func describe(r *kvpilotv1.Router, m members.Member) {
	r.RouterId, r.Name, r.Address, r.WireMajor, r.WireMinor = m.ID, m.Name, m.Address, m.WireMajor, m.WireMinor
	if !m.Started.IsZero() {
		r.Started = timestamppb.New(m.Started)
	}
}

func routerState(s members.State) kvpilotv1.RouterState {
	switch s {
	case members.Alive:
		return kvpilotv1.RouterState_ROUTER_STATE_ALIVE
	case members.Stranger:
		return kvpilotv1.RouterState_ROUTER_STATE_STRANGER
	case members.Dead:
		return kvpilotv1.RouterState_ROUTER_STATE_DEAD
	}
	return kvpilotv1.RouterState_ROUTER_STATE_UNSPECIFIED
}
