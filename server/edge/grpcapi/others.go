package grpcapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/peers/forward"
)

// others passes calls on to the other routers of the fleet.
type others struct {
	peers        *forward.Fleet // nil without a fleet
	senders      *senders
	pools        pools
	tenantHeader string
}

// of is the other routers as this call may ask them: none for a call that one of them has passed on.
func (o *others) of(ctx context.Context) *forward.Fleet {
	if o.peers == nil || passedOn(ctx) != nil {
		return nil
	}
	return o.peers
}

// onward is the context of a call that is passed on to another router.
func (o *others) onward(ctx context.Context) context.Context {
	c := sent(ctx)
	h := http.Header{}
	for name, values := range c.Header {
		if name != o.tenantHeader {
			h[name] = values
		}
	}
	if c.RequestID != "" {
		h.Set("X-Request-Id", c.RequestID)
	}
	return forward.Send(ctx, o.senders.of(ctx), c.Client, h)
}

// reportPatience is how long a report may take at the router that owns the reservation.
const reportPatience = time.Second

// toOwner passes a report on to the router that made the reservation. passed is false when that is this one, or none.
func toOwner[In, Out any](ctx context.Context, o *others, id string, in In, send func(kvpilotv1.RoutingServiceClient, context.Context, In, ...grpc.CallOption) (Out, error)) (out Out, isPassed bool, err error) {
	fleet := o.of(ctx)
	if fleet == nil {
		return out, false, nil
	}
	owner, err := fleet.Owner(id)
	if err != nil {
		return out, true, err
	}
	if owner == nil {
		if by := forward.OwnerID(id); by != "" && by != fleet.Self().ID { // its bookings here end by themselves
			return out, true, reservationNotFound()
		}
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(o.onward(ctx), reportPatience)
	defer cancel()
	out, err = send(owner.Routing, ctx, in)
	return out, true, forward.Error(err)
}

// deciderFor returns the other router that decides for a model, nil when this one does. Without a model's name the body's counts, or the
// name of the only model.
func (o *others) deciderFor(ctx context.Context, model string, body []byte) *forward.Peer {
	fleet := o.of(ctx)
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
		only := o.pools.models()
		if len(only) != 1 {
			return nil
		}
		model = only[0]
	}
	return fleet.Peer(fleet.Decider(model))
}

// asDecider has a question that books nothing answered by the router that decides for the model. passed is false when that is this
// one, or does not answer.
func asDecider[Out any](ctx context.Context, o *others, model string, body []byte, ask func(context.Context, kvpilotv1.RoutingServiceClient) (Out, error)) (out Out, isPassed bool, err error) {
	p := o.deciderFor(ctx, model, body)
	if p == nil {
		return out, false, nil
	}
	ctx, cancel := context.WithTimeout(o.onward(ctx), reportPatience)
	defer cancel()
	out, err = ask(ctx, p.Routing)
	if err = forward.Error(err); err != nil && forward.IsUnreachable(err) {
		return out, false, nil
	}
	return out, true, err
}

// explainWide adds to the own records of a request the records of the routers that have more of it: the router that the id names, or all for
// a client's id, and then the routers that decided.
func (o *others) explainWide(ctx context.Context, in *kvpilotv1.ExplainDecisionRequest, own []*kvpilotv1.Decision) []*kvpilotv1.Decision {
	fleet := o.of(ctx)
	if fleet == nil {
		return own
	}
	ctx = o.onward(ctx)
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

// explainChosen is the record of a decision. The record of another router's decision is completed there: it has all candidates.
func (o *others) explainChosen(ctx context.Context, made *decision.Decision) *kvpilotv1.Decision {
	d := decisionProto(made, nil, false)
	p := o.of(ctx).Peer(made.DecidedBy)
	if p == nil {
		return d
	}
	answers, _ := forward.Gather(o.onward(ctx), []*forward.Peer{p}, func(ctx context.Context, p *forward.Peer) ([]*kvpilotv1.Decision, error) {
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

// listWide adds the decisions of the other routers to the own ones, and names the routers that did not answer. The page ends where the
// answer of a router ends that has more.
func (o *others) listWide(ctx context.Context, in *kvpilotv1.ListDecisionsRequest, own []*kvpilotv1.Decision, to *page) ([]*kvpilotv1.Decision, []string) {
	fleet := o.of(ctx)
	others, silent := fleet.Others()
	if len(others) == 0 {
		return own, silent
	}
	answers, late := forward.Gather(o.onward(ctx), others, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.ListDecisionsResponse, error) {
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

// loadsWide replaces the own view of the loads by the view of each replica's decider.
func (o *others) loadsWide(ctx context.Context, in *kvpilotv1.GetLoadsRequest, list []*replica.Replica, out *kvpilotv1.GetLoadsResponse) {
	fleet := o.of(ctx)
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
	answers, silent := forward.Gather(o.onward(ctx), peers, func(ctx context.Context, p *forward.Peer) ([]*kvpilotv1.RankLoad, error) {
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
