package speed

import "time"

const (
	// soonest is the time in seconds from which work that is not done shows an engine as slow.
	soonest = 1
	// slowBy is the factor by which a rank must seem slower than its equals to be tried again, tryAfter the time without a sample after
	// which that happens first; each trial that changes nothing doubles it, up to tryLast.
	slowBy            = 1.5
	tryAfter, tryLast = time.Minute, 16 * time.Minute
)

// trust is how far the Model that the evidence makes is believed: not while its predictions are wrong, nor where work that is not done
// shows the engine as slower, nor where it keeps all requests from a rank that may have become faster. Its user guards it.
type trust struct {
	watch watch
	trial trial
	lag   float64 // by how much slower the engine is than fitted, as work shows that is not done; 1 or 0: not at all
}

// fitted is the Model of a rank that the evidence takes for own.
func (t *trust) fitted(own Model, k equals) Model {
	if !t.watch.distrusted || k.of == 0 {
		return own
	}
	return k.typical.distrusted(&own)
}

// shown is m as the lag and the trial change it.
func (t *trust) shown(m Model, k equals) Model {
	if t.trial.open && k.typical != nil {
		shown := k.typical.ofKind()
		shown.Samples = m.Samples
		return shown
	}
	if t.lag > 1 {
		m.Token, m.Base, m.Load = boundToken(m.Token*t.lag), m.Base*t.lag, m.Load*t.lag
		m.Spread = max(m.Spread, 0.5)
	}
	return m
}

// lagging is by which factor the engine is slower than fitted, 1 for none, when work that is open is late by a factor. A lag stays while the
// samples that come are as late.
func (t *trust) lagging(late float64, d *drift) float64 {
	lag := 1.0
	if t.lag > 1 && d.run > 0 && d.slower {
		lag = t.lag
	}
	if late > offBy {
		lag = max(lag, late)
	}
	return lag
}

// trial has a rank that seems slow, and has no traffic for that reason, be taken for as fast as its equals for one request.
type trial struct {
	open bool
	from time.Time     // when the next one may open
	wait time.Duration // before that
}

// due reports whether a rank whose last own sample came at taught may be tried.
func (t *trial) due(taught, now time.Time) bool {
	if t.open || taught.IsZero() {
		return false
	}
	from := taught.Add(tryAfter)
	if from.Before(t.from) {
		from = t.from
	}
	return !now.Before(from)
}

// end ends the trial that is open, if one is: a request was sent.
func (t *trial) end(now time.Time) bool {
	if !t.open {
		return false
	}
	t.open = false
	t.wait = min(max(2*t.wait, tryAfter), tryLast)
	t.from = now.Add(t.wait)
	return true
}
