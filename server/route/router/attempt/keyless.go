package attempt

import (
	"context"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/labels"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// Why a request lacks the key that its policy goes by; the other reasons are the tokenizer's.
const (
	lacksPrompt  = "no_prompt"
	lacksText    = "no_text"
	lacksSession = "no_session"
	lacksRest    = "truncated"
)

// keyless counts requests that were placed by load, and logs each reason once.
type keyless struct {
	counter metric.Int64Counter
	reasons labels.Sets[string]
	logged  sync.Map // reasons that were logged
	log     *slog.Logger
}

// note counts a decision that was made without a key.
func (k *keyless) note(ctx context.Context, rq *intake.Request, d *decision.Decision) {
	if d.Reason != decision.ReasonNoKey || !rq.Call.Route.Generates() { // prompts of other routes have no place in a cache
		return
	}
	reason := lacks(rq, d.Policy)
	k.counter.Add(ctx, 1, k.reasons.Of(reason, func(reason string) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("reason", reason)}
	}))
	if _, again := k.logged.LoadOrStore(reason, true); !again {
		k.log.LogAttrs(ctx, slog.LevelWarn, "a request has no key for its policy and was placed by load; others like it are counted only",
			slog.String("key_reason", reason), slog.String("policy", string(d.Policy)), slog.String("request", rq.Call.RequestID), slog.String("advice", advice(reason)))
	}
}

// lacks names what the request does not have.
func lacks(rq *intake.Request, policy decision.Policy) string {
	switch {
	case policy == decision.ConsistentHash:
		return lacksSession
	case rq.Parsed.Prompt.Kind == prompt.KindNone && (rq.Question.IsCut() || rq.Parsed.Truncated):
		return lacksRest
	case rq.Parsed.Prompt.Kind == prompt.KindNone || rq.Enc == nil:
		return lacksPrompt
	case policy == decision.PrefixAffinity:
		return lacksText
	case rq.Enc.Reason == "":
		return lacksPrompt
	}
	return rq.Enc.Reason
}

// advice says what an operator can do about it.
func advice(reason string) string {
	switch reason {
	case lacksSession:
		return "have clients send the session header, or choose another policy"
	case lacksRest:
		return "have the proxy send more of the body: raise the buffer in which it keeps it"
	case lacksPrompt:
		return "the body's messages, prompt or input are missing or empty"
	case lacksText:
		return "prefix-affinity needs text, and the prompt has none (token ids or media only): choose another policy"
	}
	return "no replica gave token ids: docs/tokenization.md says what the reason means"
}
