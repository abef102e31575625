package tokenizer

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
)

const (
	// provenAfter consecutive equal prompt lengths make a model's tokenization proven.
	provenAfter = 8
	// clearedAfter consecutive equal lengths clear a suspicion.
	clearedAfter = 64
	// missesAfter prompts whose first block never showed up among a rank's events, while other
	// roots did, make it suspect.
	missesAfter = 8
	// expectFor is how long a rank may take to report a prompt's first block.
	expectFor    = 30 * time.Second
	expectations = 16
)

// Observation is what an engine's answer said about a prompt that was encoded here.
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

// ParityStatus is how well a model's tokenization here agrees with the engines.
type ParityStatus struct {
	Model string `json:"model"`
	// State is unproven, proven or suspect.
	State string `json:"state"`
	// Equal and Unequal count prompts whose length was compared with the engine's.
	Equal   int64 `json:"equal"`
	Unequal int64 `json:"unequal"`
	// BlocksEqual and BlocksMissed count first blocks expected among a rank's events.
	BlocksEqual  int64 `json:"blocks_equal"`
	BlocksMissed int64 `json:"blocks_missed"`
	// Overpredicted counts prompts that found far less in the cache than was predicted.
	Overpredicted int64 `json:"overpredicted"`
	// Position is the first token that differed at the last mismatch, -1 when unknown.
	Position int `json:"position"`
	// Detail describes the last mismatch without showing the prompt.
	Detail string `json:"detail,omitempty"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
}

// parity watches one model.
type parity struct {
	mu      sync.Mutex
	status  ParityStatus                    // guarded by mu
	run     int                             // guarded by mu; consecutive equal lengths
	misses  int                             // guarded by mu; consecutive missed blocks
	expects map[replica.Slot][]*expectation // guarded by mu
}

// expectation is a prompt that a rank had nothing of: its first block must be stored.
type expectation struct {
	head   []uint32
	ns     string
	until  time.Time
	closer int  // most leading tokens that a stored root block shared with it
	others bool // other root blocks were stored since
}

func (x *parity) suspect() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status.State == "suspect"
}

func (x *parity) proven() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status.State == "proven"
}

// Observe compares what the engine counted with what was encoded.
func (p *Pool) Observe(ctx context.Context, o Observation) {
	enc := o.Encoding
	if enc == nil || enc.Source == SourceNone || enc.Source == SourceBody {
		return
	}
	m := p.model(o.Pool)
	tokens, comparable := p.counted(m, enc)
	if comparable && o.PromptTokens > 0 && !o.HandedOff && tokens.derived && o.PromptTokens != tokens.n {
		m.learned.disproved(tokens.steps)
		p.metrics.broken.Add(ctx, 1)
		p.log.Warn("the engine counted another number of prompt tokens than were joined: this kind of turn is tokenized in full",
			slog.String("model", o.Pool), slog.Int("joined", tokens.n), slog.Int("counted", o.PromptTokens))
		return
	}
	x := &m.parity
	x.mu.Lock()
	detail, position := "", -1
	if comparable && o.PromptTokens > 0 && !o.HandedOff {
		if o.PromptTokens == tokens.n {
			x.status.Equal++
			x.run++
			if x.run == provenAfter && x.status.State == "unproven" || x.run == clearedAfter && x.status.State == "suspect" {
				x.enter("proven")
			}
		} else {
			x.status.Unequal++
			x.run = 0
			detail = "the engine counted another number of prompt tokens"
			position = min(o.PromptTokens, tokens.n)
		}
	}
	if o.CachedTokens >= 0 && o.PredictedOverlap >= 256 && o.CachedTokens < o.PredictedOverlap/4 {
		x.status.Overpredicted++
	}
	first := detail != "" && x.mismatch(detail, position)
	x.mu.Unlock()
	p.reportMismatch(ctx, o.Pool, detail, position, first)
}

// count is a length to compare with the engine's.
type count struct {
	n       int
	derived bool
	steps   []step
}

// counted gives the length of an encoding's whole prompt, for an early answer that of the ids
// which were completed behind it.
func (p *Pool) counted(m *model, enc *Encoding) (count, bool) {
	e := enc.entry
	switch {
	case enc.Batch != nil || enc.prompt != nil && enc.prompt.Kind == prompt.KindBatch:
		return count{}, false
	case enc.Partial && enc.whole == (cache.Key{}):
		return count{}, false
	case enc.Partial:
		e = p.lookup(enc.whole, m)
	}
	if e == nil {
		return count{}, false
	}
	return count{n: len(e.ids), derived: e.derived, steps: e.steps}, true
}

// mismatch records one and reports whether it made the model suspect. Callers hold mu.
func (x *parity) mismatch(detail string, position int) bool {
	x.status.Detail, x.status.Position, x.run = detail, position, 0
	if x.status.State == "suspect" {
		return false
	}
	x.enter("suspect")
	return true
}

// enter changes the state. Callers hold mu.
func (x *parity) enter(state string) {
	x.status.State, x.status.Since = state, time.Now()
}

func (p *Pool) reportMismatch(ctx context.Context, pool, detail string, position int, first bool) {
	if detail == "" {
		return
	}
	p.metrics.mismatch(pool)
	if first {
		p.model(pool).generation.Add(1) // what is cached may be what is wrong
		p.log.Error("token ids computed here differ from the engine's: tokenization of this model is suspect",
			slog.String("model", pool), slog.String("detail", detail), slog.Int("position", position))
	}
}

// Routed notes that the encoded prompt went to a rank which was believed to hold
// overlap leading tokens of it. A prompt with no overlap must show up among the rank's events.
// Call it only for ranks whose feed is exact: what others hold is not known.
func (p *Pool) Routed(pool string, enc *Encoding, slot replica.Slot, adapter string, overlap int) {
	if enc == nil || enc.Source == SourceNone || overlap > 0 || len(enc.IDs) < 16 || len(enc.Media) > 0 {
		return
	}
	x := &p.model(pool).parity
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.expects == nil {
		x.expects = map[replica.Slot][]*expectation{}
	}
	list := x.expects[slot]
	if len(list) >= expectations {
		return // a sample is enough
	}
	head := slices.Clone(enc.IDs[:min(len(enc.IDs), 2048)])
	x.expects[slot] = append(list, &expectation{head: head, ns: adapter, until: now.Add(expectFor), closer: -1})
}

// ObserveStored compares a rank's stored root blocks with the prompts expected there. It is
// cheap when nothing is expected. pool names the model that the rank serves.
func (p *Pool) ObserveStored(pool string, slot replica.Slot, ev *kvblock.Stored) {
	if ev.HasParent || ev.BlockSize <= 0 || len(ev.Tokens) < ev.BlockSize || ev.Tier != kvblock.TierGPU || ev.Ambiguous {
		return
	}
	x := &p.model(pool).parity
	x.mu.Lock()
	list := x.expects[slot]
	if len(list) == 0 {
		x.mu.Unlock()
		return
	}
	detail, position, first := x.stored(list, ev, slot)
	x.mu.Unlock()
	p.reportMismatch(context.Background(), pool, detail, position, first)
}

// stored settles the expectations of one rank against one root block. Callers hold mu.
func (x *parity) stored(list []*expectation, ev *kvblock.Stored, slot replica.Slot) (detail string, position int, first bool) {
	block := ev.Tokens[:ev.BlockSize]
	now := time.Now()
	matched := false
	kept := list[:0]
	position = -1
	for _, e := range list {
		same := commonPrefix(e.head, block)
		switch {
		case e.ns != ev.Adapter:
		case same == len(block):
			matched = true
			x.status.BlocksEqual++
			x.misses = 0
			continue
		case len(e.head) < len(block):
			continue // shorter than a block: it will not be stored
		default:
			e.others = true
			e.closer = max(e.closer, same)
		}
		if now.After(e.until) {
			if e.others {
				x.status.BlocksMissed++
				x.misses++
				position = e.closer
			}
			continue
		}
		kept = append(kept, e)
	}
	x.expects[slot] = kept
	if !matched && x.misses >= missesAfter && position >= 0 {
		x.misses = 0
		detail = "prompts sent to a rank never appeared among its blocks"
		first = x.mismatch(detail, position)
	}
	return detail, position, first
}

// Parity returns the guard's view of every model seen so far.
func (p *Pool) Parity() []ParityStatus {
	var list []ParityStatus
	p.models.Range(func(_, v any) bool {
		x := &v.(*model).parity
		x.mu.Lock()
		s := x.status
		x.mu.Unlock()
		s.Model = v.(*model).name
		list = append(list, s)
		return true
	})
	slices.SortFunc(list, func(a, b ParityStatus) int {
		if a.Model < b.Model {
			return -1
		}
		return 1
	})
	return list
}

func commonPrefix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
