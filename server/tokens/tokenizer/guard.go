package tokenizer

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
)

// Observation is an engine's statement about a prompt that was encoded here.
type Observation struct {
	Pool     string
	Encoding *Encoding
	// PromptTokens and CachedTokens are the engine's usage; negative when it did not say.
	PromptTokens int
	CachedTokens int
	// PredictedOverlap is the overlap, in tokens, that the chosen rank was believed to hold.
	PredictedOverlap int
	// HandedOff is set when the engine was given the ids: its count then proves nothing.
	HandedOff bool
}

// guard learns from the engines' answers and events whether the ids computed here are theirs.
type guard struct {
	log     *slog.Logger
	metrics *metrics
	mem     *memory
	models  *models
}

// ParityStatus is how well a model's tokenization here agrees with the engines.
type ParityStatus = parity.Status

// Observe compares the engine's count with the encoded ids.
func (g *guard) Observe(ctx context.Context, o Observation) {
	enc := o.Encoding
	if enc == nil || enc.Source == SourceNone || enc.Source == SourceBody {
		return
	}
	m := g.models.of(o.Pool)
	e := g.counted(m, enc)
	isCounted := e != nil && o.PromptTokens > 0 && !o.HandedOff
	if isCounted && e.derived && o.PromptTokens != e.length {
		m.learned.disproved(e.steps)
		g.metrics.Broken.Add(ctx, 1)
		g.log.Warn("the engine counted another number of prompt tokens than were joined: this kind of turn is tokenized in full",
			slog.String("model", o.Pool), slog.Int("joined", e.length), slog.Int("counted", o.PromptTokens))
		return
	}
	if o.CachedTokens >= 0 && o.PredictedOverlap >= 256 && o.CachedTokens < o.PredictedOverlap/4 {
		m.parity.Overpredicted()
	}
	if isCounted {
		g.reportMismatch(ctx, o.Pool, m.parity.Length(e.length, o.PromptTokens))
	}
}

// counted returns the names of the ids with a length that can be compared with the engine's; for an early answer, the one completed
// after it; nil if there is none.
func (g *guard) counted(m *model, enc *Encoding) *names {
	switch {
	case enc.Batch != nil || enc.prompt != nil && enc.prompt.Kind == prompt.KindBatch:
		return nil
	case enc.Partial && enc.whole == (cache.Key{}):
		return nil
	case enc.Partial:
		if e := g.mem.lookup(enc.whole, m); e != nil {
			return e.names
		}
		return nil
	}
	return enc.names
}

func (g *guard) reportMismatch(ctx context.Context, pool string, found parity.Mismatch) {
	if found.Detail == "" {
		return
	}
	g.metrics.mismatch(pool)
	if found.First {
		g.models.of(pool).generation.Add(1) // the cached ids may be the wrong ones
		g.log.Error("token ids computed here differ from the engine's: tokenization of this model is suspect",
			slog.String("model", pool), slog.String("detail", found.Detail), slog.Int("position", found.Position))
	}
}

// Routed notes that the encoded prompt went to a rank which was believed to hold overlap leading tokens of it. A
// prompt with no overlap must show up among the rank's events. It must be called only for ranks with an exact feed:
// the contents of others are not known.
func (g *guard) Routed(pool string, enc *Encoding, slot replica.Slot, adapter string, overlap int) {
	if enc == nil || enc.Source == SourceNone || overlap > 0 || enc.Known() < 16 || len(enc.Media) > 0 {
		return
	}
	g.models.of(pool).parity.Expect(slot, enc.head(), adapter)
}

// Withdrawn takes back the prompt that Routed noted, of a request that ended before its answer was complete: its client left, or its engine refused it, so
// perhaps nothing of its prompt was computed.
func (g *guard) Withdrawn(pool string, enc *Encoding, slot replica.Slot, adapter string) {
	if enc != nil && enc.Source != SourceNone && enc.Known() > 0 {
		g.models.of(pool).parity.Withdraw(slot, enc.head(), adapter)
	}
}

// ObserveStored compares a rank's stored root blocks with the prompts expected there. It is
// cheap when nothing is expected. pool names the model that the rank serves.
func (g *guard) ObserveStored(pool string, slot replica.Slot, ev *kvblock.Stored) {
	if ev.HasParent || ev.BlockSize <= 0 || len(ev.Tokens) < ev.BlockSize || ev.Tier != kvblock.TierGPU || ev.Ambiguous {
		return
	}
	g.reportMismatch(context.Background(), pool, g.models.of(pool).parity.Stored(slot, ev))
}

// Parity returns the guard's view of every model seen so far.
func (g *guard) Parity() []ParityStatus {
	var list []ParityStatus
	g.models.all(func(m *model) { list = append(list, m.parity.Status()) })
	slices.SortFunc(list, func(a, b ParityStatus) int { return cmp.Compare(a.Model, b.Model) })
	return list
}
