package conduct

import (
	"slices"
	"time"
)

// sample is a piece of one stream.
type sample struct {
	stream uint64
	at     time.Time
	pace
}

// pace is the time of a token.
type pace struct {
	// likely, least and most are by the rank's clocks, and take the stream to have given all that it may have; strict is the likely one if it
	// has given no more than was reported.
	likely, least, most, strict float64
	// token is in seconds.
	token, weight float64
}

// paceOf is the pace of a stream that gave made tokens in p, and may have given more by slack.
func paceOf(p clock, made, slack float64) pace {
	most := max(made+slack, 1)
	return pace{p.likely / most, p.least / most, p.most / most, p.likely / max(made, 1), p.seconds / max(made+slack/2, 1), min(p.seconds, longTime)}
}

// workspace is the memory of one look, reused.
type workspace struct {
	paces  []pace
	values []weighed
	seen   []uint64
}

type weighed struct{ value, weight float64 }

func (w *workspace) reset() { w.paces, w.seen = w.paces[:0], w.seen[:0] }

func (w *workspace) add(stream uint64, p pace) {
	w.paces, w.seen = append(w.paces, p), append(w.seen, stream)
}

// streams is how many streams the paces are of.
func (w *workspace) streams() int {
	slices.Sort(w.seen)
	w.seen = slices.Compact(w.seen)
	return len(w.seen)
}

// median is the weighted median of each ratio.
func (w *workspace) median() (m pace) {
	if len(w.paces) == 0 {
		return pace{}
	}
	of := func(read func(*pace) float64) float64 {
		w.values = w.values[:0]
		all := 0.0
		for i := range w.paces {
			p := &w.paces[i]
			w.values = append(w.values, weighed{read(p), p.weight})
			all += p.weight
		}
		slices.SortFunc(w.values, func(a, b weighed) int {
			switch {
			case a.value < b.value:
				return -1
			case a.value > b.value:
				return 1
			}
			return 0
		})
		left := all / 2
		for _, v := range w.values {
			if left -= v.weight; left <= 0 {
				return v.value
			}
		}
		return w.values[len(w.values)-1].value
	}
	m.likely = of(func(p *pace) float64 { return p.likely })
	m.least = of(func(p *pace) float64 { return p.least })
	m.most = of(func(p *pace) float64 { return p.most })
	m.strict = of(func(p *pace) float64 { return p.strict })
	m.token = of(func(p *pace) float64 { return p.token })
	for i := range w.paces {
		m.weight += w.paces[i].weight
	}
	return m
}

// ratio is how much slower p is than the others.
func (others pace) ratio(p pace) float64 {
	if others.likely <= 0 {
		return 0
	}
	return p.likely / others.likely
}
