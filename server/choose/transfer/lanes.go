package transfer

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Model predicts the seconds that a transfer takes.
type Model struct {
	// Start is the time of a transfer of nothing, PerToken the time of each token, in seconds.
	Start, PerToken float64
	// Samples counts the transfers behind it; 0 for the published one.
	Samples int
}

// seconds is the predicted time of a transfer of so many tokens.
func (m *Model) seconds(tokens float64) float64 { return m.Start + m.PerToken*tokens }

// priorModel is the model of a lane without transfers. It is a line through llm-d's published times of single requests (gpt-oss-120b: 2k
// tokens 35 ms, 8k 57, 16k 86, 32k 165, 48k 235).
func priorModel() Model { return Model{Start: 0.025, PerToken: 4.4e-6} }

const (
	// memory is how many of the latest transfers a lane remembers.
	memory = 64
	// mostLanes bounds the lanes; all later ones share one.
	mostLanes = 1024
)

// sample is one transfer.
type sample struct{ tokens, seconds float64 }

// Lane learns the time of transfers on one way.
type Lane struct {
	// From and To name the parts of the network. They are empty for a lane of Loads.
	From, To string

	prior Model
	model atomic.Pointer[Model]

	mu     sync.Mutex
	latest []sample // guarded by mu
	next   int      // the place of the next sample in latest; guarded by mu
	seen   int      // guarded by mu
}

func newLane(from, to string, prior Model) *Lane {
	l := &Lane{From: from, To: to, prior: prior}
	l.model.Store(&prior)
	return l
}

// Model returns the lane's present prediction.
func (l *Lane) Model() Model { return *l.model.Load() }

// learned returns the lane's prediction where it has seen transfers itself.
func (l *Lane) learned() (m Model, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Model(), l.seen > 0
}

// take takes the prediction of another router. A lane that has seen transfers itself keeps its own.
func (l *Lane) take(m Model) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == 0 && m != l.prior {
		l.prior = m
		l.model.Store(&m)
	}
}

// Learn adds a transfer of so many tokens in so many seconds.
func (l *Lane) Learn(tokens int, seconds float64) {
	if tokens <= 0 || !(seconds > 0) || math.IsInf(seconds, 0) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	one := sample{float64(tokens), seconds}
	if len(l.latest) < memory {
		l.latest = append(l.latest, one)
	} else {
		l.latest[l.next] = one
		l.next = (l.next + 1) % memory
	}
	l.seen++
	m := fit(l.latest, l.prior)
	m.Samples = l.seen
	l.model.Store(&m)
}

const (
	// rounds is how often a fit weighs its samples again, huber the relative error from which one counts less: the first transfer of a
	// pair includes its handshake and takes many times longer.
	rounds = 4
	huber  = 0.3
)

// fit is the line with the least relative errors. Where the samples do not show how the time divides into start and tokens, it divides
// as in the prior.
func fit(samples []sample, prior Model) Model {
	ratios := make([]float64, len(samples))
	for i, s := range samples {
		ratios[i] = s.seconds / prior.seconds(s.tokens)
	}
	slices.Sort(ratios)
	scale := ratios[(len(ratios)-1)/2]
	m := Model{Start: scale * prior.Start, PerToken: scale * prior.PerToken}
	rows := append(slices.Clone(samples), sample{2048, m.seconds(2048)}, sample{49152, m.seconds(49152)})
	for range rounds {
		var w, x, y, xx, xy float64
		for _, r := range rows {
			predicted := max(m.seconds(r.tokens), 1e-6)
			weight := 1 / (predicted * predicted)
			if off := math.Abs(r.seconds/predicted - 1); off > huber {
				weight *= huber / off
			}
			w += weight
			x += weight * r.tokens
			y += weight * r.seconds
			xx += weight * r.tokens * r.tokens
			xy += weight * r.tokens * r.seconds
		}
		det := w*xx - x*x
		if det <= 0 {
			break
		}
		start, perToken := (y*xx-x*xy)/det, (w*xy-x*y)/det
		switch {
		case perToken < 0:
			start, perToken = y/w, 0
		case start < 0:
			start, perToken = 0, xy/xx
		}
		m.Start, m.PerToken = start, perToken
	}
	return m
}

// Lanes has the lanes between the parts of a network. The zero value is ready.
type Lanes struct {
	mu     sync.Mutex
	all    map[[2]string]*Lane // guarded by mu
	shared *Lane               // of all beyond mostLanes; guarded by mu
}

// Of returns the lane from one part of the network to another, which is made when it is new.
func (l *Lanes) Of(from, to string) *Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := [2]string{from, to}
	if lane := l.all[name]; lane != nil {
		return lane
	}
	if len(l.all) >= mostLanes {
		if l.shared == nil {
			l.shared = newLane("other", "other", priorModel())
		}
		return l.shared
	}
	if l.all == nil {
		l.all = map[[2]string]*Lane{}
	}
	lane := newLane(from, to, priorModel())
	l.all[name] = lane
	return lane
}

// List returns the lanes by their names.
func (l *Lanes) List() []*Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*Lane, 0, len(l.all)+1)
	for _, lane := range l.all {
		list = append(list, lane)
	}
	if l.shared != nil {
		list = append(list, l.shared)
	}
	slices.SortFunc(list, func(a, b *Lane) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return list
}
