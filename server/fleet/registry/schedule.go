package registry

import (
	"math/rand/v2"
	"time"
)

const (
	versionEvery  = time.Minute
	suspicionWait = 500 * time.Millisecond // between probes while a failure is not yet confirmed
	// nearby is the time between probes of a replica that is down, as long as its machine answers: a port that is
	// closed opens with the engine, and a silent process may continue at any moment.
	nearby = 500 * time.Millisecond
	// nearbyFor is after how long it is probed ever more rarely like any other.
	nearbyFor = 10 * time.Minute
	// confirm is the time to the next probe of a replica that answers again.
	confirm = 100 * time.Millisecond
)

// schedule computes when a replica is probed next, and for what. It is fed with the results.
type schedule struct {
	modelsDue, versionDue, sourcesDue time.Time // zero: at once

	last   time.Time // the last probe
	down   time.Time // since when it fails
	fails  int       // in a sequence
	oks    int       // in a sequence
	seen   bool      // it was healthy once
	engine string    // the version that it reported last
}

// dues are the questions of the next probe.
type dues struct{ models, version bool }

func (s *schedule) dues(now time.Time) dues {
	return dues{models: !now.Before(s.modelsDue), version: !now.Before(s.versionDue)}
}

// asksSources reports whether a probe with this result also asks where the ranks publish.
func (s *schedule) asksSources(res result, now time.Time) bool {
	if res.version != nil {
		s.engine = res.version.text
	}
	return res.err == nil && listsSources(s.engine) && !now.Before(s.sourcesDue)
}

// forget makes everything due.
func (s *schedule) forget() {
	s.modelsDue, s.versionDue, s.sourcesDue = time.Time{}, time.Time{}, time.Time{}
}

// note applies the result of a probe that began at now, and returns the time to the next one.
func (s *schedule) note(res result, now time.Time, conf *ProbeConfig) time.Duration {
	s.last = res.at
	if res.own { // it is no evidence about the replica
		return suspicionWait
	}
	if res.models != nil {
		s.modelsDue = now.Add(conf.ModelsInterval)
	}
	if res.version != nil {
		s.versionDue = now.Add(versionEvery)
	}
	if res.sources != nil {
		s.sourcesDue = now.Add(versionEvery)
	}
	if res.err != nil {
		if s.fails == 0 {
			s.down = now
		}
		s.fails, s.oks = s.fails+1, 0
		s.forget() // it may return as another process
	} else {
		s.fails, s.oks, s.seen = 0, s.oks+1, true
	}
	return conf.wait(s.fails, s.oks, s.seen, res.near && now.Sub(s.down) < nearbyFor)
}

// wait is the time to the next probe after so many consecutive failures or successes. A replica that
// was never seen healthy may be loading its model: it is probed at the usual pace. near is set when it may
// return at any moment.
func (p ProbeConfig) wait(fails, oks int, seen, near bool) time.Duration {
	wait := p.Interval
	switch {
	case fails == 0 && oks < p.Up:
		wait = min(wait, confirm)
	case fails > 0 && fails < p.Down:
		wait = min(wait, suspicionWait)
	case near && fails > 0:
		wait = min(wait, nearby)
	case fails >= p.Down && seen:
		for i := p.Down; i < fails && wait < p.MaxInterval; i++ {
			wait *= 2
		}
		wait = min(wait, p.MaxInterval)
	}
	return wait - wait/10 + time.Duration(rand.Int64N(int64(wait/5)+1))
}
