package grpcapi

import (
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/peers/forward"
	sharing "github.com/kvpilot/kvpilot/server/route/splits"
)

// splits compares the sides of split models, and sends them back and forward.
type splits struct {
	of      *sharing.Splits
	senders *senders
	others  *others
	trail   trail
}

func (s *splits) ListSplits(context.Context, *kvpilotv1.ListSplitsRequest) (*kvpilotv1.ListSplitsResponse, error) {
	out := &kvpilotv1.ListSplitsResponse{}
	for _, r := range s.of.List() {
		out.Splits = append(out.Splits, splitProto(r))
	}
	return out, nil
}

func (s *splits) SetSplitSide(ctx context.Context, in *kvpilotv1.SetSplitSideRequest) (*kvpilotv1.SetSplitSideResponse, error) {
	by := s.senders.name(ctx)
	if passedOn(ctx) != nil {
		s.of.Follow(in.GetModel(), in.GetSide(), in.GetBack(), by)
		return &kvpilotv1.SetSplitSideResponse{}, nil
	}
	err := splitError(s.of.Set(in.GetModel(), in.GetSide(), in.GetBack(), by))
	detail := "forward"
	if in.GetBack() {
		detail = "back"
	}
	s.trail.recordWith(ctx, audit.Event{Kind: audit.Settings, Method: kvpilotv1.RoutingService_SetSplitSide_FullMethodName, Target: in.GetModel() + "/" + in.GetSide(), Detail: detail}, err)
	if err != nil {
		return nil, err
	}
	out := &kvpilotv1.SetSplitSideResponse{}
	for _, r := range s.of.List() {
		if r.Model == in.GetModel() {
			out.Split = splitProto(r)
		}
	}
	if fleet := s.others.of(ctx); fleet != nil {
		peers, silent := fleet.Others()
		_, missing := forward.Gather(s.others.onward(ctx), peers, func(ctx context.Context, p *forward.Peer) (*kvpilotv1.SetSplitSideResponse, error) {
			return p.Routing.SetSplitSide(ctx, in)
		})
		out.Unanswered = append(silent, missing...)
	}
	return out, nil
}

// splitError is the public form of an error of Set.
func splitError(err error) error {
	switch {
	case errors.Is(err, sharing.ErrUnknown):
		return apierror.New(apierror.ModelNotFound, "No request for the model was split, or its split has no such side; kvpilot splits lists them.", nil, apierror.WithParam("side"))
	case errors.Is(err, sharing.ErrLast):
		return apierror.New(apierror.Conflict, "No other side of the split gets requests.", nil, apierror.WithParam("side"))
	}
	return err
}

func splitProto(r sharing.Report) *kvpilotv1.Split {
	out := &kvpilotv1.Split{Model: r.Model}
	for _, one := range r.Sides {
		side := &kvpilotv1.SplitSide{
			Side: one.Name, TargetModel: one.Model, Labels: one.Labels, Weight: uint32(max(0, one.Weight)), Baseline: one.Baseline, Ready: one.Ready,
			Requests: uint32(one.Requests), Failed: uint32(one.Failed),
			TtftP50: limitProto(one.FirstP50), TtftP99: limitProto(one.FirstP99), AnswerP50: limitProto(one.WholeP50), AnswerP99: limitProto(one.WholeP99), Worse: one.Worse,
		}
		if one.Shadowed {
			side.ShadowRegret = seconds(one.Regret)
		}
		if b := one.Back; b != nil {
			side.SteppedBackSince, side.SteppedBackWhy, side.SteppedBackBy = timestamppb.New(b.At), b.Why, b.By
		}
		out.Sides = append(out.Sides, side)
	}
	return out
}
