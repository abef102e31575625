package router

import (
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// headerPriority is the request's priority at the engine, smaller first; it wins over the body's.
const headerPriority = "X-Vllm-Priority"

// bytesPerToken estimates the tokens of a prompt if only its size is known.
const bytesPerToken = 4

// limits keeps tenants to their limits. Without an owner there are none.
type limits struct{ owner quota.Owner }

// enter counts a request against its tenant's limits, or refuses it. Its caller must call settle.
func (l *limits) enter(rq *request) error {
	if l.owner == nil || !l.owner.Active() {
		return nil
	}
	g := new(quota.Grant)
	if refusal := l.owner.Admit(g, rq.call.Tenant); refusal != nil {
		return overLimit(refusal)
	}
	rq.grant = g
	return nil
}

func overLimit(refusal *quota.Refusal) *apierror.Error {
	h := http.Header{}
	refusal.State.Set(h)
	return apierror.New(apierror.RateLimitExceeded, refusal.Message(), nil, apierror.WithRetryAfter(refusal.RetryAfter), apierror.WithHeader(h))
}

// book books the tokens that the request is predicted to take. limit bounds the output; 0 is none.
func (l *limits) book(rq *request, limit int, reserve bool) error {
	if !rq.grant.InUse() {
		return nil
	}
	generates := rq.call.Route.Generates() || rq.call.Route == openai.RouteOther && strings.HasSuffix(rq.call.path(), "/generate")
	ask := quota.Ask{Prompt: rq.promptSize(), MaxOutput: limit, Answers: rq.parsed.N, Generates: generates, Reserve: reserve}
	if refusal := l.owner.Book(rq.grant, ask); refusal != nil {
		return overLimit(refusal)
	}
	return nil
}

// promptSize is the number of the prompt's tokens, as far as it is known before an engine reports it.
func (rq *request) promptSize() int {
	switch {
	case rq.enc != nil:
		return rq.tokens()
	case rq.upload != nil:
		return 0 // the tokens of a recording are not known
	}
	switch rq.call.Route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return 0 // nothing is computed
	case openai.RouteOther:
		if strings.HasSuffix(rq.call.path(), "render") {
			return 0
		}
	default:
	}
	return len(rq.body) / bytesPerToken
}

// settle ends a request's grant: with what it took, as far as that is known. It must be called for each request, in every way
// that the request can end.
func (l *limits) settle(rq *request, d *delivery, err error) {
	if rq.grant.InUse() {
		l.owner.Settle(rq.grant, bill{rq}.used(d, err))
	}
}

// left reports whether a request ended because its client did not wait.
func left(err error) bool {
	if err == nil {
		return false
	}
	reason := apierror.From(err).Reason
	return reason == apierror.Cancelled || reason == apierror.DeadlineExceeded
}

// reserved hands the grant to its reservation: the end of the reservation settles it.
func (l *limits) reserved(rq *request, c *chooser.Choice) {
	g := rq.grant
	if !g.InUse() {
		return
	}
	rq.grant = nil
	most := bill{rq}.mostOutside(c)
	prompt := rq.promptSize()
	c.OnEnd(func(result chooser.Result) { l.owner.Settle(g, usedOutside(result, prompt, most)) })
}

// capPriority lowers a request's priority to the highest that its tenant may claim.
func (l *limits) capPriority(rq *request) {
	if l.owner == nil || rq.parsed == nil {
		return
	}
	most, capped := l.owner.MaxPriority(rq.call.Tenant)
	if !capped || -rq.parsed.Priority <= most {
		return
	}
	rq.parsed.Priority, rq.lowered = -most, true
	if rq.parsed.Present("priority") {
		rq.parsed.Impose(openai.Edit{Name: "priority", Value: strconv.AppendInt(nil, int64(-most), 10)})
	}
}

// header is what replicas see of the client's headers.
func (rq *request) header() http.Header {
	if !rq.lowered || rq.call.Header.Get(headerPriority) == "" {
		return rq.call.Header
	}
	h := maps.Clone(rq.call.Header)
	h[headerPriority] = []string{strconv.Itoa(rq.parsed.Priority)}
	return h
}

// explain adds the tenant's account to an answer's headers.
func (l *limits) explain(rq *request, h http.Header) {
	if !rq.grant.InUse() {
		return
	}
	if s, ok := l.owner.State(rq.grant); ok {
		s.Set(h)
	}
}
