package tokenizer

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
)

const (
	// trustAfter observations without exception make a class of steps known.
	trustAfter = 3
	// lossLimit is the largest loss, in tokens, that a class may have: a generation prompt and
	// similar. A class that loses more does not keep the earlier rendering.
	lossLimit = 64
	// margin is given away at each boundary beyond the largest loss seen: tokens that might merge
	// with text behind them.
	margin = 8
	// deltaTrust equal results make a class of steps fit for deltas, and every checkEvery-th
	// delta is compared with a full answer all the same.
	deltaTrust = 3
	checkEvery = 16
	// badFor is how long a class that broke its rule is not used.
	badFor = 10 * time.Minute
	// maxClasses bounds the classes learned per model.
	maxClasses = 4096
	// maxProbes bounds the search for the longest known beginning.
	maxProbes = 256
)

// class is the knowledge about steps of one structure.
type class struct {
	seen int
	// sizes are the longest messages that older ids ended with when the class held: a template
	// that treats longer ones differently has not been seen yet.
	sizes    sizes
	loss     int // the most tokens at the end of the older ids that were not in the newer ones
	badUntil time.Time
	deltas   int
	noDeltas bool
}

func (c *class) trusted(now time.Time) bool {
	return c.seen >= trustAfter && now.After(c.badUntil)
}

// learned is a model's knowledge of conversations.
type learned struct {
	answers answers

	mu      sync.Mutex
	classes map[uint64]*class // guarded by mu
	epoch   uint64            // guarded by mu; entries derived in an older epoch are not used
	news    chan struct{}     // guarded by mu; closed when a class becomes trusted
}

// watch returns a channel that is closed when the next class becomes trusted.
func (l *learned) watch() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return l.news
}

func (l *learned) class(name uint64) *class {
	if c := l.classes[name]; c != nil {
		return c
	}
	if len(l.classes) >= maxClasses {
		return &class{} // learned nothing, remembered nowhere
	}
	if l.classes == nil {
		l.classes = map[uint64]*class{}
	}
	c := &class{}
	l.classes[name] = c
	return c
}

// known is the beginning of a conversation that was encoded before.
type known struct {
	entry *entry
	key   cache.Key
	count int // its messages
	steps []step
	// stable is how many of its ids are sure to begin the new prompt too; 0 when that is not known.
	stable int
	// delta is set when the steps are fit for a delta.
	delta bool
}

// judge says how many ids of e are sure to begin a prompt that extends it by steps.
func (l *learned) judge(e *entry, steps []step) (stable int, delta bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	stable, delta = len(e.ids), true
	for _, s := range steps {
		c := l.classes[s.class]
		if c == nil || !c.trusted(now) {
			return 0, false
		}
		if !s.tail.within(c.sizes) {
			return 0, false
		}
		stable -= c.loss + margin
		delta = delta && c.deltas >= deltaTrust && !c.noDeltas
	}
	return max(0, stable), delta
}

// observe learns from a prompt if its full ids came in one answer while k was known. It reports
// whether k broke a rule that was relied on, and at which token.
func (l *learned) observe(k *known, ids []uint32) (broke bool, position int) {
	same := parity.CommonPrefix(k.entry.ids, ids)
	loss := len(k.entry.ids) - same
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	broke = same < k.stable || len(k.steps) == 1 && loss > lossLimit && l.class(k.steps[0].class).trusted(now)
	if broke {
		for _, s := range k.steps {
			*l.class(s.class) = class{badUntil: now.Add(badFor)}
		}
		l.epoch++
		return true, same
	}
	if len(k.steps) != 1 {
		return false, same // it is not known which step lost it
	}
	c := l.class(k.steps[0].class)
	switch {
	case now.Before(c.badUntil):
	case loss > lossLimit:
		*c = class{badUntil: now.Add(badFor)}
	default:
		c.seen++
		c.loss = max(c.loss, loss)
		for i, n := range k.steps[0].tail {
			c.sizes[i] = max(c.sizes[i], n)
		}
		if c.seen >= trustAfter && l.news != nil {
			close(l.news)
			l.news = nil
		}
	}
	return false, same
}

// compared learns whether a delta gave the same ids as a full answer.
func (l *learned) compared(k *known, equal bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range k.steps {
		c := l.class(s.class)
		if !equal {
			c.noDeltas = true
			continue
		}
		if len(k.steps) == 1 {
			c.deltas++
		}
	}
	if !equal {
		l.epoch++
	}
}

// disproved notes that ids joined by the steps were not the engine's.
func (l *learned) disproved(steps []step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range steps {
		l.class(s.class).noDeltas = true
	}
	l.epoch++
}

// noDelta notes that the step cannot be joined from a delta. Of several steps, which one cannot
// is not known.
func (l *learned) noDelta(k *known) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(k.steps) == 1 {
		l.class(k.steps[0].class).noDeltas = true
	}
}

// wantsDelta reports whether a delta should be tried along with a full answer, to learn.
func (l *learned) wantsDelta(k *known) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range k.steps {
		c := l.class(s.class)
		if c.noDeltas || c.deltas >= deltaTrust {
			return false
		}
	}
	return true
}

func (l *learned) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// checked draws whether a delta is to be compared with a full answer.
func checked() bool { return rand.IntN(checkEvery) == 0 }

// begun is the answer from the known beginning: its stable ids, and an estimate of the rest.
func (k *known) begun(pr *prompt.Prompt, m *model, whole cache.Key) *Encoding {
	rest := 0
	for _, msg := range pr.Messages[k.count:] {
		rest += len(msg)
	}
	return &Encoding{
		IDs: k.entry.ids[:k.stable:k.stable], Source: SourceConversation, Partial: true, Answer: k.answer(m),
		Tokens: len(k.entry.ids) + m.estimate(rest), MaxLen: k.entry.maxLen, entry: k.entry, names: k.entry.names, prompt: pr, whole: whole,
	}
}
