package grpcapi

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/route/router"
)

// explainWide adds to the own records of a request those of the routers that have more of it: the one that the id names, or all for
// a client's id, and then those that decided.
func (a *API) explainWide(ctx context.Context, in *kvpilotv1.ExplainDecisionRequest, own []*kvpilotv1.Decision) []*kvpilotv1.Decision {
	fleet := a.fleet(ctx)
	if fleet == nil {
		return own
	}
	ctx = a.onward(ctx)
	ask := func(ctx context.Context, p *forward.Peer) ([]*kvpilotv1.Decision, error) {
		out, err := p.Routing.ExplainDecision(ctx, in)
		return out.GetDecisions(), err
	}
	asked := map[string]bool{fleet.Self().ID: true}
	found := own
	gather := func(peers []*forward.Peer) {
		answers, _ := forward.Gather(ctx, peers, ask)
		for _, p := range peers {
			asked[p.ID] = true
		}
		for _, answer := range answers {
			found = forward.Join(false, found, answer.Says)
		}
	}
	owner := forward.OwnerID(in.GetDecisionId())
	switch p := fleet.Peer(owner); {
	case p != nil:
		gather([]*forward.Peer{p})
	case owner != fleet.Self().ID: // a client's id, or a router that is gone
		others, _ := fleet.Others()
		gather(others)
	}
	var deciders []*forward.Peer
	for _, d := range found {
		if by := d.GetDecidedBy(); by != "" && !asked[by] {
			asked[by] = true
			if p := fleet.Peer(by); p != nil {
				deciders = append(deciders, p)
			}
		}
	}
	gather(deciders)
	return found
}

// listWide adds the decisions of the other routers to the own ones, and names those that did not answer. The page ends where the
// answer of a router ends that has more.
func (a *API) listWide(ctx context.Context, in *kvpilotv1.ListDecisionsRequest, own []*kvpilotv1.Decision, to *page) ([]*kvpilotv1.Decision, []string) {
	fleet := a.fleet(ctx)
	others, silent := fleet.Others()
	if len(others) == 0 {
		return own, silent
	}
	answers, late := forward.Gather(a.onward(ctx), others, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.ListDecisionsResponse, error) {
		out, err := p.Routing.ListDecisions(ctx, in)
		if grpcstatus.Code(err) == codes.ResourceExhausted && !in.GetOnlyChosen() { // larger than a message may be
			less := proto.CloneOf(in)
			less.OnlyChosen = true
			out, err = p.Routing.ListDecisions(ctx, less)
		}
		return out, err
	})
	lists := [][]*kvpilotv1.Decision{own}
	for _, answer := range answers {
		list := answer.Says.GetDecisions()
		lists = append(lists, list)
		if answer.Says.GetNextPageToken() != "" && len(list) > 0 {
			to.endAt(placeOf(list[len(list)-1]))
		}
	}
	return forward.Join(true, lists...), append(silent, late...)
}

// loadsWide replaces the own view of the loads by that of each replica's decider.
func (a *API) loadsWide(ctx context.Context, in *kvpilotv1.GetLoadsRequest, list []*replica.Replica, out *kvpilotv1.GetLoadsResponse) {
	fleet := a.fleet(ctx)
	if fleet == nil {
		return
	}
	self, deciders := fleet.Self().ID, map[string]string{}
	var peers []*forward.Peer
	for _, r := range list {
		if len(r.Models) == 0 {
			continue // nothing is decided for it yet
		}
		by := fleet.Decider(r.Models[0].ID)
		if by == self {
			continue
		}
		deciders[string(r.ID)] = by
		if slices.ContainsFunc(peers, func(p *forward.Peer) bool { return p.ID == by }) {
			continue
		}
		if p := fleet.Peer(by); p != nil {
			peers = append(peers, p)
		} else if !slices.Contains(out.GetUnanswered(), by) {
			out.Unanswered = append(out.Unanswered, by)
		}
	}
	if len(peers) == 0 {
		return
	}
	answers, silent := forward.Gather(a.onward(ctx), peers, func(ctx context.Context, p *forward.Peer) ([]*kvpilotv1.RankLoad, error) {
		out, err := p.Routing.GetLoads(ctx, in)
		return out.GetRanks(), err
	})
	out.Unanswered = append(out.Unanswered, silent...)
	for _, answer := range answers {
		said := map[rankKey]*kvpilotv1.RankLoad{}
		for _, l := range answer.Says {
			said[rankKey{l.GetReplicaId(), l.GetRank()}] = l
		}
		for i, own := range out.GetRanks() {
			l := said[rankKey{own.GetReplicaId(), own.GetRank()}]
			if l != nil && deciders[own.GetReplicaId()] == answer.From.ID {
				l.CountedBy = answer.From.ID
				out.Ranks[i] = l
			}
		}
	}
}

type rankKey struct {
	replica string
	rank    uint32
}

// deciderFor returns the other router that decides for a model, nil when this one does. Without a model's name the body's counts, or
// that of the only model.
func (a *API) deciderFor(ctx context.Context, model string, body []byte) *forward.Peer {
	fleet := a.fleet(ctx)
	if fleet == nil {
		return nil
	}
	if model == "" && len(body) > 0 {
		var named struct {
			Model string `json:"model"`
		}
		if json.Unmarshal(body, &named) == nil {
			model = named.Model
		}
	}
	if model == "" {
		only := a.models()
		if len(only) != 1 {
			return nil
		}
		model = only[0]
	}
	return fleet.Peer(fleet.Decider(model))
}

// asDecider has a question that books nothing answered by the router that decides for the model. passed is false when that is this
// one, or does not answer.
func asDecider[Out any](ctx context.Context, a *API, model string, body []byte, ask func(context.Context, kvpilotv1.RoutingServiceClient) (Out, error)) (out Out, isPassed bool, err error) {
	p := a.deciderFor(ctx, model, body)
	if p == nil {
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(a.onward(ctx), reportPatience)
	defer cancel()
	out, err = ask(ctx, p.Routing)
	if err = forward.Error(err); err != nil && forward.IsUnreachable(err) {
		return out, false, nil
	}
	return out, true, err
}

// atHome has the router that keeps a question's name answer it, so that the fleet books it once. passed is false when this router
// answers: it is the one, it has booked the question already, or the other does not answer.
func (s *routing) atHome(ctx context.Context, q *router.Question, in *kvpilotv1.ChooseReplicaRequest) (out *kvpilotv1.ChooseReplicaResponse, passed bool, err error) {
	fleet := s.api.fleet(ctx)
	if fleet == nil || q.Booking != router.ReserveOnce || s.api.Router.Claimed(q.Tenant, q.RequestID) {
		return nil, false, nil
	}
	home := fleet.Home(q.Tenant, q.RequestID)
	if home == nil {
		return nil, false, nil
	}
	out, err = home.Routing.ChooseReplica(s.api.onward(ctx), in)
	if err = forward.Error(err); err != nil && forward.IsUnreachable(err) {
		s.api.metrics.homeless.Add(ctx, 1)
		return nil, false, nil
	}
	return out, true, err
}

// explainChosen is the record of a decision. That of a decision which another router has made is completed there: it has all candidates.
func (a *API) explainChosen(ctx context.Context, made *decision.Decision) *kvpilotv1.Decision {
	d := decisionProto(made, nil, false)
	p := a.fleet(ctx).Peer(made.DecidedBy)
	if p == nil {
		return d
	}
	answers, _ := forward.Gather(a.onward(ctx), []*forward.Peer{p}, func(ctx context.Context, p *forward.Peer) ([]*kvpilotv1.Decision, error) {
		out, err := p.Routing.ExplainDecision(ctx, &kvpilotv1.ExplainDecisionRequest{Key: &kvpilotv1.ExplainDecisionRequest_DecisionId{DecisionId: d.GetDecisionId()}})
		return out.GetDecisions(), err
	})
	for _, answer := range answers {
		for _, other := range answer.Says {
			if other.GetAttempt() == d.GetAttempt() {
				return forward.Join(false, []*kvpilotv1.Decision{d}, []*kvpilotv1.Decision{other})[0]
			}
		}
	}
	return d
}

func (s *status) ListRouters(ctx context.Context, in *kvpilotv1.ListRoutersRequest) (*kvpilotv1.ListRoutersResponse, error) {
	a := s.api
	self := &kvpilotv1.Router{Self: true, State: kvpilotv1.RouterState_ROUTER_STATE_ALIVE, Connected: true, Report: a.report(), Started: timestamppb.New(a.began)}
	out := &kvpilotv1.ListRoutersResponse{Routers: []*kvpilotv1.Router{self}}
	if a.Peers != nil {
		describe(self, a.Peers.Self())
	}
	fleet := a.fleet(ctx)
	if fleet == nil {
		self.Decides = a.models()
		return out, nil
	}
	byID := map[string]*kvpilotv1.Router{self.GetRouterId(): self}
	for _, m := range fleet.Members() {
		r := &kvpilotv1.Router{Connected: fleet.Peer(m.ID) != nil, State: routerState(m.State)}
		describe(r, m)
		byID[m.ID] = r
		out.Routers = append(out.Routers, r)
	}
	for _, model := range a.models() {
		if r := byID[fleet.Decider(model)]; r != nil {
			r.Decides = append(r.Decides, model)
		}
	}
	others, _ := fleet.Others()
	answers, _ := forward.Gather(a.onward(ctx), others, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.ListRoutersResponse, error) {
		return p.Router.ListRouters(ctx, in)
	})
	for _, answer := range answers {
		if list := answer.Says.GetRouters(); len(list) > 0 {
			byID[answer.From.ID].Report = list[0].GetReport()
		}
	}
	return out, nil
}

// report is what this router says of itself.
func (a *API) report() *kvpilotv1.RouterReport {
	out := &kvpilotv1.RouterReport{Version: a.Version, Able: true, Requests: uint32(a.Book.Live()), Held: uint32(a.Waiting())}
	if err := a.Ready(); err != nil {
		out.NotReady = err.Error()
	}
	if a.Peers != nil {
		out.Able, out.Requests = a.Peers.Able(), uint32(a.Peers.Requests())
	}
	return out
}

func describe(r *kvpilotv1.Router, m members.Member) {
	r.RouterId, r.Name, r.Address, r.WireMajor, r.WireMinor, r.Started = m.ID, m.Name, m.Address, m.WireMajor, m.WireMinor, timestamppb.New(m.Started)
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

// models are the base models that replicas serve, by name.
func (a *API) models() []string {
	seen := map[string]bool{}
	for _, r := range a.Registry.Snapshot().Replicas {
		for _, m := range r.Models {
			if m.Parent == "" {
				seen[m.ID] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
