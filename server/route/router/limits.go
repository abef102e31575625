package router

import (
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// headerPriority is the request's priority at the engine, smaller first; it wins over the body's.
const headerPriority = "X-Vllm-Priority"

// bytesPerToken stands for a prompt of which only the size is known.
const bytesPerToken = 4

// enter counts a request against its tenant's limits, or refuses it. Its caller has settleLimits called.
func (r *Router) enter(j *job) error {
	if r.Limits == nil || !r.Limits.Active() {
		return nil
	}
	g := new(quota.Grant)
	if refusal := r.Limits.Admit(g, j.call.Tenant); refusal != nil {
		return overLimit(refusal)
	}
	j.grant = g
	return nil
}

func overLimit(refusal *quota.Refusal) *apierror.Error {
	h := http.Header{}
	refusal.State.Set(h)
	return apierror.New(apierror.RateLimitExceeded, refusal.Message(), nil, apierror.WithRetryAfter(refusal.RetryAfter), apierror.WithHeader(h))
}

// book books the tokens that the request is predicted to take. limit bounds the output; 0 is none.
func (r *Router) book(j *job, limit int, reserve bool) error {
	if !j.grant.InUse() {
		return nil
	}
	generates := j.call.Route.Generates() || j.call.Route == openai.RouteOther && strings.HasSuffix(j.path(), "/generate")
	ask := quota.Ask{Prompt: j.promptSize(), MaxOutput: limit, Answers: j.req.N, Generates: generates, Reserve: reserve}
	if refusal := r.Limits.Book(j.grant, ask); refusal != nil {
		return overLimit(refusal)
	}
	return nil
}

// promptSize is the number of the prompt's tokens, as far as it is known before an engine says it.
func (j *job) promptSize() int {
	switch {
	case j.enc != nil:
		return j.tokens()
	case j.upload != nil:
		return 0 // a recording says nothing about its tokens
	}
	switch j.call.Route {
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		return 0 // nothing is computed
	case openai.RouteOther:
		if strings.HasSuffix(j.path(), "render") {
			return 0
		}
	default:
	}
	return len(j.body) / bytesPerToken
}

// settleLimits ends a request's grant: with what it took, as far as that is known. It is called for each job, however
// that ends.
func (r *Router) settleLimits(j *job, err error) {
	if j.grant.InUse() {
		r.Limits.Settle(j.grant, j.used(err))
	}
}

// used is what the request has cost its tenant.
func (j *job) used(err error) quota.Usage {
	if u, ok := j.scan.Usage(); ok {
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: u.PromptTokens, Output: u.CompletionTokens}
	}
	switch n := j.scan.ContentEvents(); {
	case j.choosing && err == nil:
		return quota.Usage{Charge: quota.ChargeBooked} // nobody will say what it took; a dry run has booked nothing
	case n > 0 && !j.firstToken.IsZero(): // a stream without usage: the router's own count
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: j.promptSize(), Output: j.tokensIn(n)}
	case j.begun && err == nil:
		return quota.Usage{Charge: quota.ChargeBooked}
	case !j.chosen.IsZero() && left(err): // the engine was at it when the client left
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: j.promptSize()}
	}
	return quota.Usage{}
}

// left reports whether a request ended because its client did not wait.
func left(err error) bool {
	if err == nil {
		return false
	}
	reason := apierror.From(err).Reason
	return reason == apierror.Cancelled || reason == apierror.DeadlineExceeded
}

// reserved hands the grant of a reservation over to it: whatever ends that, settles.
func (r *Router) reserved(j *job, c *chooser.Choice) {
	g, prompt := j.grant, j.promptSize()
	if !g.InUse() {
		return
	}
	j.grant = nil
	c.OnEnd(func(result chooser.Result) { r.Limits.Settle(g, usedOutside(result, prompt)) })
}

// usedOutside is what a request has cost that others sent.
func usedOutside(result chooser.Result, prompt int) quota.Usage {
	switch {
	case result.PromptTokens >= 0 || result.OutputTokens >= 0:
		if result.PromptTokens >= 0 {
			prompt = result.PromptTokens
		}
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: prompt, Output: max(0, result.OutputTokens)}
	case result.End == decision.EndCompleted, result.End == decision.EndExpired:
		return quota.Usage{Charge: quota.ChargeBooked} // nobody said what it was
	case result.End == decision.EndCanceled:
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: prompt}
	}
	return quota.Usage{}
}

// capPriority serves a request that claims a higher priority than its tenant may at the highest that it may.
func (r *Router) capPriority(j *job) {
	if r.Limits == nil || j.req == nil {
		return
	}
	most, capped := r.Limits.MaxPriority(j.call.Tenant)
	if !capped || -j.req.Priority <= most {
		return
	}
	j.req.Priority, j.lowered = -most, true
	if j.req.Present("priority") {
		j.req.Impose(openai.Edit{Name: "priority", Value: strconv.AppendInt(nil, int64(-most), 10)})
	}
}

// header is what replicas see of the client's headers.
func (j *job) header() http.Header {
	if !j.lowered || j.call.Header.Get(headerPriority) == "" {
		return j.call.Header
	}
	h := maps.Clone(j.call.Header)
	h[headerPriority] = []string{strconv.Itoa(j.req.Priority)}
	return h
}

// explainLimits puts the tenant's account beside an answer.
func (r *Router) explainLimits(j *job, h http.Header) {
	if !j.grant.InUse() {
		return
	}
	if s, ok := r.Limits.State(j.grant); ok {
		s.Set(h)
	}
}
