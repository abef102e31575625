package replay

import (
	"fmt"
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Answers are what the router sees of answers, and knows of their length. The zero value has streams of a known length.
type Answers struct {
	// Whole has each answer come in one piece, at its end.
	Whole bool
	// Limit, above zero, is all that the router knows of an answer's length: the request's max_tokens.
	Limit int
}

// expected is what the router is given of the length of an answer of out tokens.
func (a *Answers) expected(out int) (hint, limit int) {
	if a.Limit > 0 {
		return a.Limit, a.Limit
	}
	return out, 0
}

// Turn is a moment at which a replica gets another speed.
type Turn struct {
	Replica int
	// At is in seconds from the start of the run, Speed a multiple of the profile's.
	At, Speed float64
}

// ParseTurns reads turns in the form replica:seconds:speed.
func ParseTurns(texts []string) ([]Turn, error) {
	var list []Turn
	for _, text := range texts {
		var t Turn
		if n, err := fmt.Sscanf(text, "%d:%g:%g", &t.Replica, &t.At, &t.Speed); n != 3 || err != nil || t.Replica < 0 || t.At < 0 || t.Speed <= 0 {
			return nil, fmt.Errorf("%q must be replica:seconds:speed, for example 0:60:0.2", text)
		}
		list = append(list, t)
	}
	return list, nil
}

// turn makes the changes of speed happen.
func (s *sim) turn(turns []Turn, p *Profile) {
	for _, t := range turns {
		if t.Replica < 0 || t.Replica >= len(s.engines) {
			continue
		}
		s.schedule(event{at: t.At, kind: eventDo, do: func() {
			e := s.engines[t.Replica]
			s.catchUp(e)
			e.machine.SetSpeed(p.Timing.Speed * t.Speed)
			if e.steps > 1 {
				e.cut()
				s.plan(e)
			}
		}})
	}
}

// prefills counts what an engine shows of the prefill of requests that have ended.
type prefills struct {
	seconds  float64
	computed uint64
}

// begun notes at now which sequences the engine has begun.
func (e *engine) begun(now float64) {
	for _, q := range e.machine.Running() {
		if a := q.Owner.(*attempt); math.IsNaN(a.scheduled) {
			a.scheduled = now
		}
	}
}

// ended counts a sequence that has ended.
func (p *prefills) ended(a *attempt, prompt int) {
	p.seconds += a.prefilled - a.scheduled
	p.computed += uint64(prompt - a.seq.Cached())
}

// judged notes how right the prediction was of an answer that came whole: its first token is known to the player alone.
func (r *router) judged(a *attempt, d *decision.Decision) {
	if p := d.Pick(); p.TTFT > 0 {
		r.accuracy = append(r.accuracy, p.TTFT/(a.firstAt-a.sent))
	}
}
