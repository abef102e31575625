package attempt

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// parserOf reports whether the answer may be one that the replica's parser takes apart, and that another one can continue.
func parserOf(rq *intake.Request, way openai.Way, r *replica.Replica) resume.Parser {
	if way == openai.WayNone || !intake.HasTokenRoutes(r) {
		return resume.NoParser
	}
	switch way {
	case openai.WayTokens:
		return resume.HasParser
	case openai.WayText:
		if rq.Or(rq.Parsed).Route == openai.RouteChat {
			return resume.PerhapsParser
		}
	case openai.WayNone, openai.WayRepeat:
	}
	return resume.NoParser
}

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

// AskDerender has an engine's parser answer a question of the derender route.
func (e *sender) AskDerender(ctx context.Context, rq *intake.Request, on *replica.Replica, question []byte) ([]byte, error) {
	return e.askParser(ctx, rq, on, pathDerender, question)
}

// askParser sends an engine a question of its parser, and returns the answer.
func (e *sender) askParser(ctx context.Context, rq *intake.Request, on *replica.Replica, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, parserPatience)
	defer cancel()
	resp, err := e.upstream.Do(ctx, upstream.Target{Replica: on}, &upstream.Request{
		Method: http.MethodPost, Path: path, Header: rq.Header(), Client: rq.Call.Client, ContentType: "application/json", Body: body,
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

// Parser has a replica's parser take tokens of the request's answer.
func (e *sender) Parser(ctx context.Context, rq *intake.Request, on func() *replica.Replica) resume.Parse {
	return func(before *openai.Parsed, ids []uint32, finish, stop []byte) (*openai.Derendered, error) {
		answer, err := e.AskDerender(ctx, rq, on(), before.Derender(rq.Pool.Served, rq.OrBody(rq.Body), ids, finish, stop))
		if err != nil {
			return nil, err
		}
		return before.ReadDerendered(answer, len(ids))
	}
}

// Rendered has a replica render the request.
func (e *sender) Rendered(ctx context.Context, rq *intake.Request, on *replica.Replica) (*openai.Rendered, error) {
	answer, err := e.askParser(ctx, rq, on, pathRender, rq.OrBody(rq.Body))
	if err != nil {
		return nil, err
	}
	return openai.ReadRendered(answer)
}
