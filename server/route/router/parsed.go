package router

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// The routes by which an engine continues an answer that a parser takes apart.
const (
	pathGenerate = "/inference/v1/generate"
	pathRender   = "/v1/chat/completions/render"
	pathDerender = "/v1/chat/completions/derender"
)

const (
	// parserPatience bounds one question to an engine's parser.
	parserPatience = 10 * time.Second
	// maxParserAnswer bounds the answer: a prompt's ids twice, and the sampling parameters.
	maxParserAnswer = 16 << 20
)

// hasTokenRoutes reports whether the replica's version has token routes whose parser can be given an answer again in its portions.
func hasTokenRoutes(r *replica.Replica) bool {
	major, rest, ok := strings.Cut(r.Version, ".")
	if !ok || r.RustFrontend {
		return false
	}
	if major != "0" {
		return major >= "1" && major <= "9"
	}
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && n >= 33
}

// otherRoutes remembers whether a request's pool has another replica with token routes. The zero value does not know yet.
type otherRoutes struct{ known, yes bool }

// exist reports whether there is another one, as of the first call.
func (o *otherRoutes) exist(rq *request) bool {
	if !o.known {
		n := 0
		for _, r := range rq.pool.Replicas {
			if hasTokenRoutes(r) {
				n++
			}
		}
		o.known, o.yes = true, n > 1
	}
	return o.yes
}

// mayFollow reports whether another replica could resume the answer, if it is streamed and the prompt is not too long.
func (rq *request) mayFollow() bool {
	switch rq.way() {
	case openai.WayText:
		return true
	case openai.WayTokens:
		return slices.ContainsFunc(rq.pool.Replicas, hasTokenRoutes)
	case openai.WayNone, openai.WayRepeat:
	}
	return false
}

// parserOf reports whether the answer may be one that the replica's parser takes apart, and that another one can continue.
func parserOf(rq *request, way openai.Way, r *replica.Replica) resume.Parser {
	if way == openai.WayNone || !hasTokenRoutes(r) {
		return resume.NoParser
	}
	switch way {
	case openai.WayTokens:
		return resume.HasParser
	case openai.WayText:
		if rq.or(rq.parsed).Route == openai.RouteChat {
			return resume.PerhapsParser
		}
	case openai.WayNone, openai.WayRepeat:
	}
	return resume.NoParser
}

// askParser sends an engine a question of its parser, and returns the answer.
func (e *engines) askParser(ctx context.Context, rq *request, on *replica.Replica, path string, body []byte) ([]byte, error) {
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
func (e *engines) parser(ctx context.Context, rq *request, on func() *replica.Replica) resume.Parse {
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
	for _, o := range s.attempts.engines.registry.Snapshot().Replicas { // also those that came after the request
		if _, serves := o.Serves(s.rq.pool.Served); !serves || o.ID == s.own() || slices.Contains(s.tries.ask.Exclude, o.ID) || o.State != replica.StateReady || !hasTokenRoutes(o) {
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
		f.Resume(point, func(lists [][]uint32) ([]string, bool) { return s.texts(ctx, lists, "") })
	default:
		f.ResumeParsed(s.attempts.engines.parser(ctx, s.rq, on))
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
