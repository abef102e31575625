package breaker

import (
	"time"

	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// record is the evidence about a replica while its circuit is closed.
type record struct {
	// streak are the failures since the last success, window those since began.
	streak, window evidence
	began          time.Time
	successes      int // in the window
	// cleared is when the replica last served a request, or failed one that fails on other replicas too.
	cleared time.Time
	// served are the tenants whose requests the replica served last, and when.
	served [2]served
}

// served is a tenant's last success.
type served struct {
	tenant uint64
	at     time.Time
}

// evidence is a number of failures and two of their origins.
type evidence struct {
	failures int
	// unreached are the failures without a connection, in which no request has a part.
	unreached int
	requests  [2]uint64
	tenants   [2]uint64
}

func (e *evidence) add(f retry.Finding) {
	e.failures++
	if !f.Verdict.Follows() {
		e.unreached++
		return
	}
	note(&e.requests, f.Origin.Request)
	note(&e.tenants, f.Origin.Tenant)
}

// note keeps two different names.
func note(list *[2]uint64, name uint64) {
	switch {
	case list[0] == 0:
		list[0] = name
	case list[1] == 0 && list[0] != name:
		list[1] = name
	}
}

// add adds a finding of an attempt that began at from, and reports whether the circuit must open.
func (r *record) add(f retry.Finding, from time.Time, cfg *Config, now time.Time) bool {
	if now.Sub(r.began) > cfg.Window {
		r.window, r.successes, r.began = evidence{}, 0, now
	}
	switch {
	case f.Verdict == retry.OK:
		r.streak = evidence{}
		r.successes++
		r.serves(f.Origin.Tenant, now)
		fallthrough
	case f.Exonerates():
		r.cleared = now
		return false
	case !f.Against():
		return false
	case !f.Sure && r.works(f.Verdict, from, cfg, now):
		return false // this request was not compared with another replica
	}
	r.streak.add(f)
	r.window.add(f)
	if r.streak.failures >= cfg.Failures && r.conclusive(&r.streak, cfg, now) {
		return true
	}
	all := r.successes + r.window.failures
	return all >= cfg.MinRequests && float64(r.window.failures) >= cfg.Rate*float64(all) && r.conclusive(&r.window, cfg, now)
}

// works reports whether the replica works for other requests: lately or, when it was silent, since the attempt began.
func (r *record) works(v retry.Verdict, from time.Time, cfg *Config, now time.Time) bool {
	if v.Silent() {
		return r.cleared.After(from)
	}
	return !r.cleared.IsZero() && now.Sub(r.cleared) < cfg.Window
}

// conclusive reports whether the failures cannot come from one request or one tenant. One tenant's failures are conclusive while
// the replica serves no other one.
func (r *record) conclusive(e *evidence, cfg *Config, now time.Time) bool {
	if e.unreached >= cfg.Failures {
		return true
	}
	if e.requests[1] == 0 && e.unreached == 0 {
		return false
	}
	if e.tenants[1] != 0 {
		return true
	}
	for _, s := range r.served {
		if !s.at.IsZero() && s.tenant != e.tenants[0] && now.Sub(s.at) < cfg.Window {
			return false
		}
	}
	return true
}

// serves notes a success of a tenant.
func (r *record) serves(tenant uint64, now time.Time) {
	switch {
	case r.served[0].tenant == tenant:
		r.served[0].at = now
	case r.served[1].tenant == tenant, r.served[1].at.Before(r.served[0].at):
		r.served[1] = served{tenant, now}
	default:
		r.served[0] = served{tenant, now}
	}
}
