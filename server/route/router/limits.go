package router

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// accounts keeps tenants to their limits. Without an owner there are none.
type accounts struct{ owner quota.Owner }

// enter counts a request against its tenant's limits, or refuses it. Its caller must call settle.
func (l *accounts) enter(rq *request) error {
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
func (l *accounts) book(rq *request, limit int, reserve bool) error {
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

// capPriority lowers a request's priority to the highest that its tenant may claim.
func (l *accounts) capPriority(rq *request) {
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

// explain adds the tenant's account to an answer's headers.
func (l *accounts) explain(rq *request, h http.Header) {
	if !rq.grant.InUse() {
		return
	}
	if s, ok := l.owner.State(rq.grant); ok {
		s.Set(h)
	}
}

// settle ends a request's grant with what it took.
func (l *accounts) settle(rq *request, used quota.Usage) { l.owner.Settle(rq.grant, used) }

// handOver takes the grant from a request. The caller ends it with what the request took.
func (l *accounts) handOver(rq *request) (end func(quota.Usage)) {
	g := rq.grant
	rq.grant = nil
	return func(used quota.Usage) { l.owner.Settle(g, used) }
}
