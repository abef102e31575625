package tokenizer

import "time"

const HandoffAll = handoffAll

// Broken counts the classes of turns that broke their rule.
func (p *Pool) Broken() int {
	n := 0
	p.models.all(func(m *model) {
		l := &m.learned
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.classes {
			if !c.badUntil.IsZero() || c.noDeltas {
				n++
			}
		}
	})
	return n
}

// Patient has prompts with an older beginning wait however slow the machine is. It must be called before Encode.
func (p *Pool) Patient() { p.leastWait = time.Hour }

// Derived reports whether the ids were joined from a known beginning and a delta.
func Derived(enc *Encoding) bool { return enc.names != nil && enc.names.derived }

// Expire ends the time in which first blocks are expected.
func (p *Pool) Expire(pool string) { p.models.of(pool).parity.Expire() }

// ClearParity forgets what was seen of a model.
func (p *Pool) ClearParity(pool string) { p.models.of(pool).parity.Clear() }

// Held is the memory that requests in flight hold.
func (p *Pool) Held() int64 { return p.held.now() }
