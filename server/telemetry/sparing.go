package telemetry

import (
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// shownPerSecond is how many traces are recorded for the eyes of people alone: more than anybody
// looks at, and too few to cost anything.
const shownPerSecond = 20

// sparing is the sampler when spans go to no exporter and are only shown. What was chosen is
// recorded, and of the rest a bounded number each second, so that all is seen on a quiet router
// and a busy one pays next to nothing.
type sparing struct {
	chosen sdktrace.Sampler

	mu   sync.Mutex
	left float64   // guarded by mu
	last time.Time // guarded by mu
}

func newSparing(chosen sdktrace.Sampler) *sparing {
	return &sparing{chosen: chosen, left: shownPerSecond}
}

// ShouldSample implements sdktrace.Sampler. A trace is recorded whole or not at all.
func (s *sparing) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	res := s.chosen.ShouldSample(p)
	if res.Decision != sdktrace.Drop {
		return res
	}
	parent := trace.SpanFromContext(p.ParentContext)
	if sc := parent.SpanContext(); sc.IsValid() && !sc.IsRemote() {
		if parent.IsRecording() {
			res.Decision = sdktrace.RecordOnly
		}
		return res
	}
	if s.take(time.Now()) {
		res.Decision = sdktrace.RecordOnly
	}
	return res
}

// take asks for one more trace.
func (s *sparing) take(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = min(s.left+shownPerSecond*now.Sub(s.last).Seconds(), shownPerSecond)
	s.last = now
	if s.left < 1 {
		return false
	}
	s.left--
	return true
}

// Description implements sdktrace.Sampler.
func (s *sparing) Description() string { return "sparing{" + s.chosen.Description() + "}" }
