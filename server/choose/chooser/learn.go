package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/speed"
	"github.com/kvpilot/kvpilot/server/domain/replica"
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

// learnBooked opens the choice's entry in the account of the rank's speed.
func (c *Choice) learnBooked(now time.Time) {
	cand := c.Decision.Pick()
	n := float64(cand.Uncached)
	l := c.chooser.params.Book.View(c.Slot, now)
	c.rank.speed.Booked(&c.entry, speed.Work{
		Tokens: n, Context: float64(c.Decision.PromptTokens) - n,
		Estimated: c.Decision.Estimated, Unknown: c.Decision.Keyless, Silent: c.silent, External: c.external,
	}, now, decodes(&l))
}

// learnFirst closes the entry at the first token.
func (c *Choice) learnFirst(now time.Time, l *load.RankLoad) {
	if c.rank == nil || c.adopted {
		return
	}
	if c.chooser.foreign(c.Slot, now, l.Prefilling) {
		c.rank.speed.Disturbed(now)
	}
	c.mu.Lock()
	known := c.whole
	c.mu.Unlock()
	if known != nil {
		c.rank.speed.Correct(&c.entry, float64(max(1, known.prompt-known.held)), float64(known.held))
	}
	c.rank.speed.FirstToken(&c.entry, now, decodes(l))
	if !c.sawFirst() {
		return
	}
	cand, actual := c.Decision.Pick(), now.Sub(c.at).Seconds()
	if !c.Decision.Keyless {
		c.chooser.metrics.predicted(c.rank, cand.TTFT, actual)
	}
	if c.external { // that its caller is late makes no prediction wrong
		return
	}
	if trusted, changed := c.rank.speed.Predicted(cand.TTFT, actual, now); changed {
		c.chooser.log.Warn("predictions of a rank were wrong for a minute", "replica", c.rank.replica, "rank", c.rank.index,
			"learned_speed_used", trusted, "tokens_per_second", 1/c.rank.speed.Model().Token)
	}
}

// learnSteps measures the decode steps since the mark, when there were enough of them and no prefill
// disturbed them.
func (c *Choice) learnSteps(now time.Time, output int) {
	if c.rank == nil || c.adopted {
		return
	}
	l := c.chooser.params.Book.View(c.Slot, now)
	c.mu.Lock()
	from := c.mark
	steps := output - from.output
	if from.at.IsZero() || steps < leastSteps {
		c.mu.Unlock()
		return
	}
	c.mark.set(now, output, &l)
	c.mu.Unlock()
	if from.quiet == 0 || from.quiet != l.Version || c.chooser.foreign(c.Slot, now, l.Prefilling) {
		return // steps may have carried prefill, of this process or of other senders
	}
	if from.output == 0 {
		steps-- // the first token came with the prefill's last step
	}
	switch d := decodes(&l); {
	case d.Sequences <= 0 || steps <= 0:
	case c.external:
		c.rank.speed.SteppedBy(&c.entry, now.Sub(from.at).Seconds()/float64(steps), float64(steps), d)
	default:
		c.rank.speed.Stepped(now.Sub(from.at).Seconds()/float64(steps), float64(steps), d, now)
	}
}

// learnEnd closes the entry of a request without a first token.
func (c *Choice) learnEnd(now time.Time, output int, completed bool) {
	if c.rank == nil || c.adopted {
		return
	}
	if completed && !c.streamed && !c.leased && output > 0 {
		l := c.chooser.params.Book.View(c.Slot, now)
		d := decodes(&l)
		d.Sequences, d.Context = d.Sequences+1, d.Context+c.Decision.PromptTokens+output
		c.rank.speed.Answered(&c.entry, now, output, d)
		return
	}
	c.rank.speed.Ended(&c.entry, now)
}

// foreign reports whether the engine computes for others, too, so that its time is little evidence.
func (c *Chooser) foreign(slot replica.Slot, now time.Time, prefilling int) bool {
	var rep Report
	return c.params.Engine != nil && c.params.Engine(slot, now, prefilling, &rep) && rep.Foreign >= 1
}
