package intake

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// Accounts keeps tenants to their limits. Without an owner there are none.
type Accounts struct{ owner quota.Owner }

// Enter counts a request against its tenant's limits, or refuses it. Its caller must call settle.
func (l *Accounts) Enter(rq *Request) error {
	if l.owner == nil || !l.owner.Active() {
		return nil
	}
	g := new(quota.Grant)
	if refusal := l.owner.Admit(g, rq.Call.Tenant); refusal != nil {
		return overLimit(refusal)
	}
	rq.Grant = g
	return nil
}

func overLimit(refusal *quota.Refusal) *apierror.Error {
	h := http.Header{}
	refusal.State.Set(h)
	return apierror.New(apierror.RateLimitExceeded, refusal.Message(), nil, apierror.WithRetryAfter(refusal.RetryAfter), apierror.WithHeader(h))
}

// Book books the tokens that the request is predicted to take. limit bounds the output; 0 is none.
func (l *Accounts) Book(rq *Request, limit int, reserve bool) error {
	if !rq.Grant.InUse() {
		return nil
	}
	generates := rq.Call.Route.Generates() || rq.Call.Route == openai.RouteOther && strings.HasSuffix(rq.Call.EnginePath(), "/generate")
	ask := quota.Ask{Prompt: rq.PromptSize(), MaxOutput: limit, Answers: rq.Parsed.N, Generates: generates, Reserve: reserve}
	if refusal := l.owner.Book(rq.Grant, ask); refusal != nil {
		return overLimit(refusal)
	}
	return nil
}

// capPriority lowers a request's priority to the highest that its tenant may claim.
func (l *Accounts) capPriority(rq *Request) {
	if l.owner == nil || rq.Parsed == nil {
		return
	}
	most, capped := l.owner.MaxPriority(rq.Call.Tenant)
	if !capped || -rq.Parsed.Priority <= most {
		return
	}
	rq.Parsed.Priority, rq.Lowered = -most, true
	if rq.Parsed.Present("priority") {
		rq.Parsed.Impose(openai.Edit{Name: "priority", Value: strconv.AppendInt(nil, int64(-most), 10)})
	}
}

// Explain adds the tenant's account to an answer's headers.
func (l *Accounts) Explain(rq *Request, h http.Header) {
	if !rq.Grant.InUse() {
		return
	}
	if s, ok := l.owner.State(rq.Grant); ok {
		s.Set(h)
	}
}

// Settle ends a request's grant with its use.
func (l *Accounts) Settle(rq *Request, used quota.Usage) { l.owner.Settle(rq.Grant, used) }

// HandOver takes the grant from a request. The caller ends it with the use of the request.
func (l *Accounts) HandOver(rq *Request) (end func(quota.Usage)) {
	g := rq.Grant
	rq.Grant = nil
	return func(used quota.Usage) { l.owner.Settle(g, used) }
}
