package router

import (
	"bytes"
	"errors"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// longContext is the context of a model that has not reported one.
const longContext = 1 << 17

// bounds are the most tokens that a request can have taken, whatever an engine or a caller reports.
type bounds struct{ prompt, output int }

// bound returns u without the tokens that cannot have been, and counts them.
func (m bounds) bound(u quota.Usage) quota.Usage {
	if over := u.Prompt - m.prompt; over > 0 {
		u.Prompt, u.Unbelieved = m.prompt, u.Unbelieved+over
	}
	if over := u.Output - m.output; over > 0 {
		u.Output, u.Unbelieved = m.output, u.Unbelieved+over
	}
	return u
}

// bill is what a request costs its tenant.
type bill struct{ *intake.Request }

// used is what the request has cost its tenant.
func (rq bill) used(d *attempt.Delivery, err error) quota.Usage {
	used := rq.usedHere(d, err)
	if errors.Is(err, errLeaving) {
		if used.Charge != quota.ChargeUsage {
			used = quota.Usage{}
		}
		used.Prompt, used.Elsewhere = 0, true
	}
	return used
}

// usedHere is the part of the cost that arose at this router: another one has charged the tokens of a stream that the client carried here.
func (rq bill) usedHere(d *attempt.Delivery, err error) quota.Usage {
	if rq.Events != nil && !d.WasChosen() {
		return quota.Usage{}
	}
	if u, ok := d.Scan.Usage(); ok {
		used := quota.Usage{Charge: quota.ChargeUsage, Prompt: u.PromptTokens, Output: u.CompletionTokens}
		if rq.Before > 0 {
			used.Output = max(0, used.Output-rq.Before)
		}
		if used.Prompt < 0 {
			used.Prompt = rq.PromptSize()
		}
		return rq.most(d).bound(used)
	}
	switch n := d.Scan.ContentEvents(); {
	case rq.Question != nil && !rq.OnlyIDs && err == nil:
		return quota.Usage{Charge: quota.ChargeBooked} // its usage is not reported; a dry run has booked nothing
	case n > 0 && !d.FirstToken().IsZero(): // a stream without usage: the router's own count
		used := quota.Usage{Charge: quota.ChargeUsage, Prompt: rq.PromptSize(), Output: rq.TokensIn(n)}
		if rq.Before > 0 { // its beginning, which has no token, came from another router
			used.Output = n
		}
		return used
	case d.HasBegun() && err == nil:
		return quota.Usage{Charge: quota.ChargeBooked}
	case d.WasChosen() && clientLeft(err): // the engine was computing when the client left
		return quota.Usage{Charge: quota.ChargeUsage, Prompt: rq.PromptSize()}
	}
	return quota.Usage{}
}

// most bounds what the request took: by its prompt and by the answer that came. A token of an answer has at least one byte of it.
func (rq bill) most(d *attempt.Delivery) bounds {
	var c *chooser.Choice
	if d.Attempt != nil {
		c = d.Attempt.Choice
	}
	return bounds{prompt: rq.mostPrompt(c), output: min(rq.mostOutput(), d.Scan.Bytes())}
}

// mostOutside bounds what a request took that its caller sends.
func (rq bill) mostOutside(c *chooser.Choice) bounds {
	return bounds{prompt: rq.mostPrompt(c), output: rq.mostOutput()}
}

// mostOutput is the client's own limit on the output of all answers.
func (rq bill) mostOutput() int {
	if rq.Parsed == nil || rq.Parsed.MaxTokens <= 0 {
		return maxUsage
	}
	return min(min(rq.Parsed.MaxTokens, maxUsage)*min(max(1, rq.Parsed.N), maxUsage), maxUsage)
}

// maxUsage is more than any request takes; its square is no overflow.
const maxUsage = 1 << 31

// mostPrompt is the number of the prompt's ids where they are known. Otherwise a token has at least one byte of the body, except
// for media and for what an engine has stored: of these only the model's context is a bound.
func (rq bill) mostPrompt(c *chooser.Choice) int {
	if rq.Parsed == nil {
		return 0
	}
	p := &rq.Parsed.Prompt
	context := 0
	if p.HasMedia || rq.Upload != nil || rq.Holder != "" || rq.Question.IsCut() {
		context = longContext
		if c != nil {
			if n := attempt.ContextOf(c.Replica, rq.Pool.Served); n > 0 {
				context = n
			}
		}
	}
	if rq.Enc != nil && rq.Enc.Exact && context == 0 {
		return rq.Enc.Tokens
	}
	bound := rq.Size() + intake.TemplateTokens
	switch rq.Call.Route {
	case openai.RouteRerank, openai.RouteScore: // the query counts with each document
		bound *= 1 + bytes.Count(rq.Body, []byte{'"'})/2
	default:
	}
	return max(bound, context)
}

// usedOutside is what a request has cost that its caller sent. The end that the router has seen itself is a fact: the replica is
// gone, or the lease ran out. What a caller reports is its claim.
func usedOutside(result chooser.Result, prompt int, most bounds) quota.Usage {
	if !result.Claimed {
		if result.End == decision.EndCompleted || result.End == decision.EndExpired {
			return quota.Usage{Charge: quota.ChargeBooked}
		}
		return quota.Usage{}
	}
	u := quota.Usage{Charge: quota.ChargeClaimed}
	switch {
	case result.PromptTokens >= 0 || result.OutputTokens >= 0:
		if result.PromptTokens >= 0 {
			prompt = result.PromptTokens
		}
		u.Prompt, u.Output = prompt, max(0, result.OutputTokens)
	case result.End == decision.EndCompleted, result.End == decision.EndExpired:
		return quota.Usage{Charge: quota.ChargeBooked} // its usage was not reported
	case result.End == decision.EndCanceled:
		u.Prompt = prompt
	}
	return most.bound(u)
}

// clientLeft reports whether a request ended because its client did not wait.
func clientLeft(err error) bool {
	if err == nil {
		return false
	}
	reason := apierror.From(err).Reason
	return reason == apierror.Cancelled || reason == apierror.DeadlineExceeded
}

// settle ends a request's grant with its use, as far as that is known. It must be called for each request, in every way
// that the request can end.
func settle(l *intake.Accounts, rq *intake.Request, d *attempt.Delivery, err error) {
	if rq.Grant.InUse() {
		l.Settle(rq, bill{rq}.used(d, err))
	}
}

// reserved hands the grant to its reservation: the end of the reservation settles it.
func reserved(l *intake.Accounts, rq *intake.Request, c *chooser.Choice) {
	if !rq.Grant.InUse() {
		return
	}
	most, prompt := bill{rq}.mostOutside(c), rq.PromptSize()
	end := l.HandOver(rq)
	c.OnEnd(func(result chooser.Result) { end(usedOutside(result, prompt, most)) })
}
