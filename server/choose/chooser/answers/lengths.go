package answers

import (
	"math"
	"sync"
)

const (
	// Usual is the length of an answer in tokens while nothing is known of it, longestOutput bounds the length that counts.
	Usual, longestOutput = 256, 16384
	// knownFrom is the number of answers from which their mean length is used, lengthMemory the number that it reaches back over.
	knownFrom, lengthMemory = 8, 64
	// mostTenants bounds the tenants of a model whose answers are kept apart.
	mostTenants = 4096
)

// Lengths learns how long the answers of a model are, by the tenant that asks for them. The zero value is empty.
type Lengths struct {
	mu     sync.RWMutex
	all    length
	tenant map[string]*length
}

// length is the mean of output tokens of the last answers.
type length struct {
	count int
	mean  float64
}

func (l *length) add(tokens int) {
	l.count++
	l.mean += (float64(tokens) - l.mean) / float64(min(l.count, lengthMemory))
}

// Add takes in a complete answer.
func (s *Lengths) Add(tenant string, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.add(tokens)
	t := s.tenant[tenant]
	if t == nil {
		if len(s.tenant) >= mostTenants {
			return
		}
		if s.tenant == nil {
			s.tenant = map[string]*length{}
		}
		t = &length{}
		s.tenant[tenant] = t
	}
	t.add(tokens)
}

// mean is the mean length of the tenant's answers, or else of all; 0 while too few are known.
func (s *Lengths) mean(tenant string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l := s.tenant[tenant]
	if l == nil || l.count < knownFrom {
		l = &s.all
	}
	if l.count < knownFrom {
		return 0
	}
	return max(1, int(l.mean+0.5))
}

// Expected is the number of output tokens to expect of a request of tenant: its caller's hint, or else as many as the tenant's answers have,
// within the request's limit; 0 when nothing is known. A hint that is the limit is none.
func (s *Lengths) Expected(tenant string, hint, limit int) int {
	if hint > 0 && hint != limit {
		return hint
	}
	mean := s.mean(tenant)
	switch {
	case limit <= 0:
		return mean
	case mean <= 0:
		return min(limit, Usual)
	default:
		return min(limit, mean)
	}
}

// Counted is the number of output tokens that counts of those expected.
func Counted(expected int) int {
	if expected <= 0 {
		return Usual
	}
	n := float64(min(expected, longestOutput))
	if n > Usual {
		n = math.Sqrt(n * Usual)
	}
	return int(n)
}
