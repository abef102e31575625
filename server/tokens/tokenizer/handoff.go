package tokenizer

import (
	"context"
	"math/rand/v2"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Handoff says whether ids may be given to the engine in place of the text, and how.
type Handoff struct {
	// Form is completions (the ids are the prompt), chat (kv_transfer_params.prompt_token_ids) or none.
	Form HandoffForm
	IDs  []uint32
	// Reason says why Form is none.
	Reason string
}

// HandoffForm is the way ids travel.
type HandoffForm string

// The forms.
const (
	HandoffNone       HandoffForm = "none"
	HandoffAsPrompt   HandoffForm = "completions"
	HandoffAsTransfer HandoffForm = "chat"
)

// handoffSample is how many handoffs there are to one prompt that goes as text all the same, so
// that the parity guard keeps seeing the engine's ids for text.
const handoffSample = 32

// Handoff decides for one encoding and the replica it goes to. The client's answer must not
// change by it, so anything that shows the prompt or depends on its text keeps the text.
func (p *Pool) Handoff(ctx context.Context, req Request, enc *Encoding, to *replica.Replica) Handoff {
	h := p.handoff(ctx, req, enc, to)
	if h.Form != HandoffNone && rand.IntN(handoffSample) == 0 {
		h = Handoff{Form: HandoffNone, Reason: "sample"}
	}
	p.metrics.handoff(req.Pool, h)
	return h
}

func (p *Pool) handoff(ctx context.Context, req Request, enc *Encoding, to *replica.Replica) Handoff {
	no := func(reason string) Handoff { return Handoff{Form: HandoffNone, Reason: reason} }
	m := p.models.of(req.Pool)
	pr := req.Prompt
	if reason := m.withheld(pr, enc); reason != "" {
		return no(reason)
	}
	if name := shown(pr); name != "" {
		return no(name)
	}
	switch {
	case pr.API == prompt.APICompletions:
		return Handoff{Form: HandoffAsPrompt, IDs: enc.IDs}
	case enc.MaxLen > 0 && len(enc.IDs) >= enc.MaxLen:
		return no("too_long") // this way has no length check, the ordinary way answers 400
	case !p.asker.remote.TakesIDs(ctx, to, pr.Model, enc.IDs):
		return no("unsupported")
	}
	return Handoff{Form: HandoffAsTransfer, IDs: enc.IDs}
}

// withheld is the reason why ids are not handed over, whatever the body says and whichever the replica is; empty for none.
func (m *model) withheld(pr *prompt.Prompt, enc *Encoding) string {
	mode := m.set.Handoff
	switch {
	case mode == handoffOff:
		return "off"
	case enc.Source == SourceNone || enc.Source == SourceBody || len(enc.IDs) == 0:
		return "no_ids"
	case enc.Partial || !enc.Exact:
		return "partial"
	case pr.HasMedia || len(enc.Media) > 0:
		return "media"
	case pr.Truncate != 0:
		return "truncated"
	case enc.names != nil && enc.names.derived:
		return "derived" // sure enough to route by, not to generate from
	case m.parity.IsSuspect():
		return "suspect"
	}
	chat := pr.API == prompt.APIChat && pr.Kind == prompt.KindChat && mode == handoffAll
	switch {
	case !chat && (pr.API != prompt.APICompletions || pr.Kind != prompt.KindText):
		return "shape"
	case !m.parity.IsProven():
		return "unproven"
	}
	return ""
}

// shown names a member of the body because of which the answer shows the prompt or depends on
// its text, or that is in the way of the ids; empty when there is none.
func shown(pr *prompt.Prompt) string {
	found := ""
	err := rawjson.Members(pr.Body, func(name string, v []byte) bool {
		switch name {
		case "echo", "suffix", "prompt_logprobs", "return_token_ids", "prompt_embeds", "kv_transfer_params", "use_beam_search":
			if !rawjson.IsNull(v) && string(v) != "false" && string(v) != `""` {
				found = name
			}
		}
		return found == ""
	})
	if err != nil {
		return "body"
	}
	return found
}
