package answer

import (
	"context"
	"errors"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// Why a stream is not continued by token ids: no replica was asked, or its answer is as long as it may be.
var (
	errNoParser    = errors.New("no other replica has routes for token ids")
	errNothingLeft = errors.New("no token is left of the answer")
)

// accepted reports whether a replica that is not dead makes of the request and of its answer so far what the first one did, and so can continue it.
func (s *resumed) accepted(ctx context.Context, point *resume.Point) bool {
	err := errNoParser
	view, own := s.attempts.Engines.Registry.Snapshot(), s.own()
	if s.reply != nil && attempt.LeavesRank(s.reply.a, view) {
		own = "" // another rank of it
	}
	for _, o := range view.Replicas { // also those that came after the request
		if _, serves := o.Serves(s.rq.Pool.Served); !serves || o.ID == own || slices.Contains(s.tries.Ask.Exclude, o.ID) && !s.broke.had(o.ID) || o.State != replica.StateReady || !intake.HasTokenRoutes(o) {
			continue
		}
		if err = s.accepts(ctx, o, point); err == nil {
			return true
		}
		if ctx.Err() != nil {
			break
		}
	}
	s.log.Info("a stream is not continued by token ids", "request", s.rq.Call.RequestID, "error", err)
	return false
}

func (s *resumed) accepts(ctx context.Context, on *replica.Replica, point *resume.Point) error {
	e := s.attempts.Engines
	rendered, err := e.Rendered(ctx, s.rq, on)
	if err != nil {
		return err
	}
	if attempt.RestOf(s.rq, point).AsIDs(on, rendered) == nil {
		return errNothingLeft
	}
	return point.Replay.Accept(rendered, e.Parser(ctx, s.rq, func() *replica.Replica { return on }))
}

// follow has a follower take the rest of the stream from point on, which comes from the replica that on returns.
func (s *resumed) follow(ctx context.Context, f *resume.Follower, point *resume.Point, on func() *replica.Replica) {
	switch {
	case point.Again:
		f.Repeat()
	case point.Replay == nil:
		f.Resume(point, func(lists [][]uint32) ([]string, bool) { return s.texts(ctx, lists, nil) })
	default:
		f.ResumeParsed(s.attempts.Engines.Parser(ctx, s.rq, on))
		f.Seal(s.attempts.Engines.Stamp(on(), 0))
	}
}

// unable adds to those that are excluded the replicas which cannot continue the stream from the point: by token ids, those without the routes.
func (s *resumed) unable(point *resume.Point, excluded []replica.ID) []replica.ID {
	if point.Replay == nil {
		return excluded
	}
	list := slices.Clone(excluded)
	for _, o := range s.attempts.Engines.Registry.Snapshot().Replicas {
		if !intake.HasTokenRoutes(o) && !slices.Contains(list, o.ID) {
			list = append(list, o.ID)
		}
	}
	return list
}
