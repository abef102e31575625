package follow

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// mark is a moment in a stream from which the time of decode steps is measured.
type mark struct {
	at     time.Time
	output int
	// quiet is the rank's bookings then when nothing was being prefilled, else 0: prefill makes steps
	// longer.
	quiet uint64
}

func (m *mark) set(now time.Time, output int, l *load.RankLoad) {
	*m = mark{at: now, output: output}
	if l.Prefilling == 0 {
		m.quiet = l.Version
	}
}

// leastSteps is the number of decode steps that are measured together.
const leastSteps = 8

func decodes(l *load.RankLoad) speed.Decodes {
	return speed.Decodes{Sequences: l.InFlight - l.Prefilling, Context: l.ContextTokens}
}

// Learning has the parts that each lesson works with.
type Learning struct {
	Book        *load.Book
	Reports     reports.Reports // nil: none
	Clock       *clock.Clock
	Log         *slog.Logger
	Predictions *Predictions
}

// Lesson is a request's entry in the account of its rank's speed. It is an Observer.
type Lesson struct {
	*Learning
	ask.Reporting
	Rank     *rank.Rank
	Decision *decision.Decision
	Found    *Found
	entry    speed.Entry

	mu   sync.Mutex
	mark mark // guarded by mu
}

// waitShare is the share of a prefill from which on a load from a tier below the GPU, or a wait for KV memory, makes the time to the first
// token no evidence of speed.
const waitShare = 0.1

func certainty(d *decision.Decision, c *decision.Candidate) speed.Certainty {
	switch wait := waitShare * c.Prefill; {
	case d.Keyless, c.AdapterTime() > 0, c.Crowding > wait:
		return speed.Unknown
	case c.Load > wait:
		return speed.Loading
	case d.Estimated:
		return speed.Estimated
	}
	return speed.Exact
}

// Open opens the entry in the account of rk.
func (s *Lesson) Open(with *Learning, rk *rank.Rank) {
	s.Learning, s.Rank = with, rk
	cand := s.Decision.Pick()
	n := float64(cand.Uncached)
	l := s.Book.View(s.Rank.Slot, s.Decision.At)
	s.Rank.Speed.Booked(&s.entry, speed.Work{
		Tokens: n, Context: float64(s.Decision.PromptTokens) - n,
		Certainty: certainty(s.Decision, cand), Silent: s.Silent, External: s.External,
	}, s.Decision.At, decodes(&l))
}

// FirstToken implements Observer: it closes the entry.
func (s *Lesson) FirstToken(now time.Time, _ int) {
	l := s.Book.View(s.Rank.Slot, now)
	s.mu.Lock()
	s.mark.set(now, 0, &l)
	s.mu.Unlock()
	if s.foreign(now, l.Prefilling) {
		s.Rank.Speed.Disturbed(now)
	}
	if known := s.Found.Later(); known != nil {
		s.Rank.Speed.Correct(&s.entry, float64(max(1, known.Prompt-known.Held)), float64(known.Held))
	}
	s.Rank.Speed.FirstToken(&s.entry, now, decodes(&l))
	if !s.SeesFirst() {
		return
	}
	cand, actual := s.Decision.Pick(), now.Sub(s.Decision.At).Seconds()
	if !s.Decision.Keyless {
		s.Predictions.add(s.Rank, cand.TTFT, actual)
	}
	if s.External { // that its caller is late makes no prediction wrong
		return
	}
	if trusted, changed := s.Rank.Speed.Predicted(cand.TTFT, actual, now); changed {
		s.Log.Warn("predictions of a rank were wrong for a minute", "replica", s.Rank.Replica, "rank", s.Rank.Index,
			"learned_speed_used", trusted, "tokens_per_second", 1/s.Rank.Speed.Model().Token)
	}
}

// Progress implements Observer.
func (s *Lesson) Progress(output int) {
	s.mu.Lock()
	enough := !s.mark.at.IsZero() && output-s.mark.output >= leastSteps
	s.mu.Unlock()
	if enough {
		s.steps(s.Clock.Now(), output)
	}
}

// steps measures the decode steps since the mark, when there were enough of them and no prefill
// disturbed them.
func (s *Lesson) steps(now time.Time, output int) {
	l := s.Book.View(s.Rank.Slot, now)
	s.mu.Lock()
	from := s.mark
	steps := output - from.output
	if from.at.IsZero() || steps < leastSteps {
		s.mu.Unlock()
		return
	}
	s.mark.set(now, output, &l)
	s.mu.Unlock()
	if from.quiet == 0 || from.quiet != l.Version || s.foreign(now, l.Prefilling) {
		return // steps may have carried prefill, of this process or of other senders
	}
	if from.output == 0 {
		steps-- // the first token came with the prefill's last step
	}
	switch d := decodes(&l); {
	case d.Sequences <= 0 || steps <= 0:
	case s.External:
		s.Rank.Speed.SteppedBy(&s.entry, now.Sub(from.at).Seconds()/float64(steps), float64(steps), d)
	default:
		s.Rank.Speed.Stepped(now.Sub(from.at).Seconds()/float64(steps), float64(steps), d, now)
	}
}

// Ended implements Observer: it closes the entry of a request without a first token.
func (s *Lesson) Ended(end *ask.End) {
	if !end.First.IsZero() && end.Completed() {
		s.steps(end.At, end.Output)
	}
	if end.Completed() && !s.Streamed && !s.Leased && end.Output > 0 {
		l := s.Book.View(s.Rank.Slot, end.At)
		d := decodes(&l)
		d.Sequences, d.Context = d.Sequences+1, d.Context+s.Decision.PromptTokens+end.Output
		s.Rank.Speed.Answered(&s.entry, end.At, end.Output, d)
		return
	}
	s.Rank.Speed.Ended(&s.entry, end.At)
}

// foreign reports whether the engine computes for others, too, so that its time is little evidence.
func (s *Lesson) foreign(now time.Time, prefilling int) bool {
	var rep reports.Report
	return s.Reports != nil && s.Reports.Report(s.Rank.Slot, now, prefilling, &rep) && rep.Foreign >= 1
}

// Predictions measures how right the predicted first tokens were.
type Predictions struct {
	Errors metric.Float64Histogram `metric:"kvpilot.chooser.prediction_error" unit:"1" help:"Predicted over actual time to the first token of streamed requests, from the choice on. Its ranks: kvpilot_chooser_predictions_total."`
}

// add counts a prediction, in seconds, and the actual time.
func (m *Predictions) add(r *rank.Rank, predicted, actual float64) {
	if actual > 0 {
		m.Errors.Record(context.Background(), predicted/actual)
		r.Accuracy.Add(predicted / actual)
	}
}

// Decoding is a split request in the account of the speed of the rank that decodes: of its time to the first token, the rank's
// part is not known. It is an Observer.
type Decoding struct{ *Lesson }

// FirstToken implements Observer.
func (l Decoding) FirstToken(now time.Time, _ int) {
	view := l.Book.View(l.Rank.Slot, now)
	l.mu.Lock()
	l.mark.set(now, 0, &view)
	l.mu.Unlock()
}

// Ended implements Observer.
func (l Decoding) Ended(end *ask.End) {
	if !end.First.IsZero() && end.Completed() {
		l.steps(end.At, end.Output)
	}
}
