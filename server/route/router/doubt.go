package router

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// doubts are a request's failures that may be its own fault. They count against no replica before another replica has shown whose
// fault they are: it serves the request, or fails it in the same way. The zero value has none.
type doubts struct {
	origin retry.Origin // zero until it is needed
	open   []doubt
	// alike is set once two replicas have failed the request in the same way.
	alike bool
	// cause is that of the last failure, as far as it is known.
	cause retry.Cause
}

// doubt is a failure of one replica.
type doubt struct {
	replica replica.ID
	pass    breaker.Pass
	verdict retry.Verdict
	begun   bool // the client had something of the answer
}

// knownPoison is how often two replicas must have failed a request before it is tried on two replicas at most, where
// the failures may be those of a fleet in trouble.
const knownPoison = 5

// settle reports the outcome of an attempt to breaker and registry.
func (r *Router) settle(rq *request, d *delivery, a *attempt, outcome retry.Verdict) {
	id := a.choice.Replica.ID
	switch outcome {
	case retry.Unreachable, retry.Reset, retry.Broken, retry.Malformed, retry.Stalled:
		r.Registry.ReportFailure(id, errAnswer)
	case retry.OK:
		r.Registry.Alive(id)
	default: // says nothing about whether the replica is there
	}
	if outcome.Follows() {
		r.doubt(rq, d, doubt{id, a.pass, outcome, d.begun})
		return
	}
	f := retry.Find(outcome, retry.Origin{Tenant: r.poison.Tenant(rq.call.Tenant)})
	r.report(d, id, a.pass, f)
	switch outcome {
	case retry.OK:
		r.served(rq, d, true)
	case retry.ClientFault: // another replica refuses the request: it is wrong in itself
		r.resolve(rq, d, retry.CauseRequest, false)
	default:
	}
}

// doubt notes a failure that may be the request's own.
func (r *Router) doubt(rq *request, d *delivery, one doubt) {
	ds := &d.doubts
	ds.cause = one.verdict.Cause()
	same := slices.ContainsFunc(ds.open, func(o doubt) bool { return o.replica != one.replica && retry.Alike(o.verdict, one.verdict) })
	ds.open = append(ds.open, one)
	if same && !ds.alike {
		ds.alike = true
		r.poison.Failed(r.origin(rq, d))
	}
	if ds.alike {
		r.resolve(rq, d, retry.CauseRequest, false)
	}
}

// served notes that a replica serves the request: the others were at fault. What failed after the client's first byte is settled
// at the end of the answer.
func (r *Router) served(rq *request, d *delivery, whole bool) {
	ds := &d.doubts
	if len(ds.open) == 0 || !whole && slices.ContainsFunc(ds.open, func(o doubt) bool { return o.begun }) {
		return
	}
	r.poison.Served(r.origin(rq, d))
	r.resolve(rq, d, retry.CauseNone, true)
}

// conclude settles the failures that no other replica was compared for.
func (r *Router) conclude(rq *request, d *delivery) {
	if len(d.doubts.open) == 0 {
		return
	}
	cause := retry.CauseNone
	switch from := r.origin(rq, d); {
	case r.poison.Times(from) > 0:
		cause = retry.CauseRequest
	case r.poison.Suspect(from):
		cause = retry.CauseTenant
	}
	r.resolve(rq, d, cause, false)
}

// resolve reports the open doubts: with the cause, or with CauseNone as the replica's.
func (r *Router) resolve(rq *request, d *delivery, cause retry.Cause, sure bool) {
	ds := &d.doubts
	for _, one := range ds.open {
		f := retry.Find(one.verdict, r.origin(rq, d))
		f.Sure = sure
		if cause != retry.CauseNone {
			f.Cause = cause
		}
		r.report(d, one.replica, one.pass, f)
	}
	ds.open = nil
}

// report reports a finding to the breaker, and counts it.
func (r *Router) report(d *delivery, id replica.ID, pass breaker.Pass, f retry.Finding) {
	r.Breaker.Report(id, pass, f)
	if f.Cause != retry.CauseNone {
		d.doubts.cause = f.Cause
		r.metrics.faults.add(f)
	}
}

// origin names the request. A body that is still coming counts as far as it has come.
func (r *Router) origin(rq *request, d *delivery) retry.Origin {
	if d.doubts.origin == (retry.Origin{}) {
		body := rq.body
		if rq.upload != nil {
			body = rq.upload.head
		}
		d.doubts.origin = r.poison.Origin(rq.call.Tenant, body, rq.method(), rq.path(), rq.call.RawQuery)
	}
	return d.doubts.origin
}

// worthRetry reports whether another replica may do better, as far as the request is known. An engine's error is compared with one
// other replica, within the tenant's credit, where a repetition changes nothing.
func (r *Router) worthRetry(rq *request, t *tries, d *delivery, f *failure) bool {
	if !f.outcome.Follows() {
		return true
	}
	from := r.origin(rq, d)
	times := r.poison.Times(from)
	if f.outcome == retry.EngineError {
		return !d.doubts.alike && times == 0 && rq.call.Route != openai.RouteOther && r.poison.Compare(from)
	}
	return times < knownPoison || t.tried() == 0
}

// pick makes the chooser decide and book the attempt, on a replica whose breaker admits it. The breaker may have changed since the
// chooser asked it, and another router's decider has not asked this one; then there is another choice, which avoids the replica.
func (r *Router) pick(rq *request, t *tries, a *attempt, choose func() error) error {
	for {
		if err := choose(); err != nil {
			return err
		}
		if r.admitted(rq, t, a) {
			return nil
		}
		a.choice.Release(chooser.Result{End: decision.EndMoved, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		t.passOver(a.choice.Replica.ID)
	}
}

// admitted takes the breaker's pass. A replica with an open breaker is used where the breaker says so: when no other one is left.
func (r *Router) admitted(rq *request, t *tries, a *attempt) (ok bool) {
	id := a.choice.Replica.ID
	if a.pass, ok = r.Breaker.Allow(id); ok {
		return true
	}
	a.forced = !a.choice.Decision.HasOtherReplica() || slices.Contains(t.ask.Avoid, id) || rq.holder == id
	if !a.forced {
		var usable []replica.ID
		for _, o := range t.ask.Replicas {
			if o.State == replica.StateReady && !slices.Contains(t.ask.Exclude, o.ID) {
				usable = append(usable, o.ID)
			}
		}
		a.forced = !slices.Contains(r.Breaker.Bar(nil, usable, t.ask.Avoid), id)
	}
	return a.forced
}
