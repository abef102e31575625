package router

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

const (
	// parserPatience bounds one question to an engine's parser.
	parserPatience = 10 * time.Second
	// maxParserAnswer bounds the answer: a prompt's ids twice, and the sampling parameters.
	maxParserAnswer = 16 << 20
)

// askParser sends an engine a question of its parser, and returns the answer.
func (e *sender) askParser(ctx context.Context, rq *request, on *replica.Replica, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, parserPatience)
	defer cancel()
	resp, err := e.upstream.Do(ctx, upstream.Target{Replica: on}, &upstream.Request{
		Method: http.MethodPost, Path: path, Header: rq.header(), Client: rq.call.Client, ContentType: "application/json", Body: body,
	})
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	answer, err := resp.ReadAll(maxParserAnswer)
	if err == nil && resp.Status != http.StatusOK {
		err = fmt.Errorf("%s answered with status %d", path, resp.Status)
	}
	return answer, err
}

// parser has a replica's parser take tokens of the request's answer.
func (e *sender) parser(ctx context.Context, rq *request, on func() *replica.Replica) resume.Parse {
	return func(before *openai.Parsed, ids []uint32, finish, stop []byte) (*openai.Derendered, error) {
		answer, err := e.askParser(ctx, rq, on(), pathDerender, before.Derender(rq.pool.Served, rq.orBody(rq.body), ids, finish, stop))
		if err != nil {
			return nil, err
		}
		return before.ReadDerendered(answer, len(ids))
	}
}

// Why a stream is not continued by token ids: no replica was asked, or its answer is as long as it may be.
var (
	errNoParser    = errors.New("no other replica has routes for token ids")
	errNothingLeft = errors.New("no token is left of the answer")
)

// accepted reports whether a replica that is not dead makes of the request and of its answer so far what the first one did, and so can continue it.
func (s *resumed) accepted(ctx context.Context, point *resume.Point) bool {
	err := errNoParser
	view, own := s.attempts.engines.registry.Snapshot(), s.own()
	if s.reply != nil && leavesRank(s.reply.a, view) {
		own = "" // another rank of it
	}
	for _, o := range view.Replicas { // also those that came after the request
		if _, serves := o.Serves(s.rq.pool.Served); !serves || o.ID == own || slices.Contains(s.tries.ask.Exclude, o.ID) && !s.broke.had(o.ID) || o.State != replica.StateReady || !hasTokenRoutes(o) {
			continue
		}
		if err = s.accepts(ctx, o, point); err == nil {
			return true
		}
		if ctx.Err() != nil {
			break
		}
	}
	s.log.Info("a stream is not continued by token ids", "request", s.rq.call.RequestID, "error", err)
	return false
}

func (s *resumed) accepts(ctx context.Context, on *replica.Replica, point *resume.Point) error {
	e := s.attempts.engines
	answer, err := e.askParser(ctx, s.rq, on, pathRender, s.rq.orBody(s.rq.body))
	if err != nil {
		return err
	}
	rendered, err := openai.ReadRendered(answer)
	if err != nil {
		return err
	}
	if (&remainder{rq: s.rq, point: point}).asIDs(on, rendered) == nil {
		return errNothingLeft
	}
	return point.Replay.Accept(rendered, e.parser(ctx, s.rq, func() *replica.Replica { return on }))
}

// follow has a follower take the rest of the stream from point on, which comes from the replica that on returns.
func (s *resumed) follow(ctx context.Context, f *resume.Follower, point *resume.Point, on func() *replica.Replica) {
	switch {
	case point.Again:
		f.Repeat()
	case point.Replay == nil:
		f.Resume(point, func(lists [][]uint32) ([]string, bool) { return s.texts(ctx, lists, nil) })
	default:
		f.ResumeParsed(s.attempts.engines.parser(ctx, s.rq, on))
		f.Seal(s.attempts.engines.stamps.known(on(), 0))
	}
}

// unable adds to those that are excluded the replicas which cannot continue the stream from the point: by token ids, those without the routes.
func (s *resumed) unable(point *resume.Point, excluded []replica.ID) []replica.ID {
	if point.Replay == nil {
		return excluded
	}
	list := slices.Clone(excluded)
	for _, o := range s.attempts.engines.registry.Snapshot().Replicas {
		if !hasTokenRoutes(o) && !slices.Contains(list, o.ID) {
			list = append(list, o.ID)
		}
	}
	return list
}
