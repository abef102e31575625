package tokenizer

import "time"

// Broken counts the classes of turns that broke their rule.
func (p *Pool) Broken() int {
	n := 0
	p.models.Range(func(_, v any) bool {
		l := &v.(*model).learned
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.classes {
			if !c.badUntil.IsZero() || c.noDeltas {
				n++
			}
		}
		return true
	})
	return n
}

// Derived reports whether the ids were joined from a known beginning and a delta.
func Derived(enc *Encoding) bool { return enc.entry != nil && enc.entry.derived }

// Expire lets the time run out in which first blocks are expected.
func (p *Pool) Expire(pool string) {
	x := &p.model(pool).parity
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, list := range x.expects {
		for _, e := range list {
			e.until = time.Now().Add(-time.Second)
		}
	}
}

// ClearParity forgets what was seen of a model, after its cause was repaired.
func (p *Pool) ClearParity(pool string) {
	x := &p.model(pool).parity
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status = ParityStatus{State: "unproven", Position: -1, Since: time.Now()}
	x.run, x.misses, x.expects = 0, 0, nil
}
