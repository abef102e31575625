package splits

import (
	"errors"
	"slices"
	"time"
)

// Back is why a side gets no requests.
type Back struct {
	// At is when it stepped back.
	At time.Time
	// Why is the reason in words. By names who did it: the rule, or the caller who asked.
	Why, By string
}

// setBack sends a side back, or forward: back is nil.
func (s *Splits) setBack(sp *split, one *side, back *Back) {
	one.back = back
	if back == nil {
		s.log.Info("a side of a split gets requests again", "model", sp.model, "side", one.name)
		return
	}
	s.metrics.steppedBack(sp.model, one.name, back.By == actorRule)
	s.log.Warn("a side of a split gets no further requests", "model", sp.model, "side", one.name, "why", back.Why, "by", back.By)
}

// The errors of Set.
var (
	// ErrUnknown: there is no such split or side.
	ErrUnknown = errors.New("no such side of a split is in use")
	// ErrLast: the side is the last one that gets requests.
	ErrLast = errors.New("the last side of a split cannot step back")
)

// steppedBack is the number of sides that get no requests because they were sent back.
func (s *Splits) steppedBack() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range s.splits {
		for _, one := range sp.sides {
			if one.back != nil {
				n++
			}
		}
	}
	return n
}

// Set sends a side of a model's split back, or forward. by names the caller. A round of the comparison begins.
func (s *Splits) Set(model, name string, back bool, by string) error {
	return s.set(model, name, newBack(back, "sent back by a caller", by))
}

// set is Set with why the side is to be back; nil to send it forward.
func (s *Splits) set(model, name string, to *Back) error {
	back := to != nil
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.splits[model]
	one := sp.side(name)
	if one == nil {
		return ErrUnknown
	}
	if back == (one.back != nil) {
		return nil
	}
	if back && !slices.ContainsFunc(sp.sides, func(other *side) bool { return other != one && other.back == nil && other.Weight > 0 }) {
		return ErrLast
	}
	s.setBack(sp, one, to)
	sp.restart()
	return nil
}

// Follow is Set as another router of the fleet was asked for it, or its rule has done it: it counts also before this router has a request for the side.
func (s *Splits) Follow(model, name string, back bool, by string) {
	to := newBack(back, "sent back at another router", by)
	if !errors.Is(s.set(model, name, to), ErrUnknown) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch key := (wish{model, name}); {
	case !back:
		delete(s.wished, key)
	case len(s.wished) < mostSplits:
		s.wished[key] = to
	}
}

// newBack is why a side gets no requests from now on; nil for one that is sent forward.
func newBack(back bool, why, by string) *Back {
	if !back {
		return nil
	}
	return &Back{At: time.Now(), Why: why, By: by}
}
