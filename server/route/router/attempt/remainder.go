package attempt

import (
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// remainder is the rest of a request's answer behind a point, as another replica is asked for it.
type remainder struct {
	rq    *intake.Request
	point *resume.Point
	// warms: one token of it is enough, which no client gets.
	warms bool
}

// RestOf is the rest of a request's answer behind a point.
func RestOf(rq *intake.Request, point *resume.Point) *remainder {
	return &remainder{rq: rq, point: point}
}

// rest is the part of the answer that the attempt asks for.
func (p *part) rest(rq *intake.Request) *remainder {
	return &remainder{rq: rq, point: p.point, warms: p.warms}
}

// asText is the body of a completion of it, which may ask for the ids of its tokens.
func (r *remainder) asText(on *replica.Replica, withIDs bool) []byte {
	stops, _ := r.rq.Or(r.rq.Parsed).Stops()
	rest := openai.Rest{
		Model: r.rq.Pool.Served, IDs: r.point.IDs, Answer: r.point.Answer, Limit: r.Left(on), Least: max(0, stops.Least-r.point.Answer), WithIDs: withIDs,
	}
	if r.warms {
		rest.Limit, rest.Least = 1, 0
	}
	return r.rq.Or(r.rq.Parsed).Continuation().Body(rest)
}

// AsIDs is the body that asks for its tokens, of an answer that a parser takes apart; nil when none is left. An engine has rendered the request.
func (r *remainder) AsIDs(on *replica.Replica, as *openai.Rendered) []byte {
	limit := r.Left(on)
	if r.warms {
		limit = min(limit, 1)
	}
	return r.rq.Or(r.rq.Parsed).Continuation().ByIDs(as, &openai.Rest{Model: r.rq.Pool.Served, IDs: r.point.IDs, Answer: r.point.Answer, Limit: limit})
}

// Left is how many tokens of the answer there may be: of the client's limit, or of the model's
// context on the replica, or, with none, on any that reports it.
func (r *remainder) Left(on *replica.Replica) int {
	rq := r.rq
	if limit := rq.Or(rq.Parsed).AnswerLimit(); limit > 0 {
		return limit - r.point.Answer
	}
	longest := ContextOf(on, rq.Pool.Served)
	for _, o := range rq.Pool.Replicas {
		if longest > 0 {
			break
		}
		longest = ContextOf(o, rq.Pool.Served)
	}
	return longest - len(r.point.IDs)
}

// ContextOf is the length of the model's context on a replica, 0 when it is not known. An adapter has
// that of its base model.
func ContextOf(on *replica.Replica, served string) int {
	if on == nil {
		return 0
	}
	m, _ := on.Serves(served)
	return selector.Context(on, m)
}
