package grpcapi

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	"github.com/kvpilot/kvpilot/server/peers/members"
)

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

// report is what this router says of itself.
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
