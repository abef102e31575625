package router

import (
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// doubts are what a request's attempts leave open about its faults. The zero value has none.
type doubts struct {
	poison.Doubts
	origin retry.Origin // zero until it is needed
	// cause is that of the last failure, as far as it is known.
	cause retry.Cause
}

// knownPoison is how often two replicas must have failed a request before it is tried on two replicas at most, where
// the failures may be those of a fleet in trouble.
const knownPoison = 5

// blame finds the party at fault for the failures of attempts, and reports it to breaker and registry.
type blame struct {
	registry *registry.Registry
	breaker  *breaker.Breaker
	poison   *poison.Memory
	faults   *faults
}

// settle reports the outcome of an attempt to breaker and registry.
func (b *blame) settle(rq *request, d *delivery, a *attempt, outcome retry.Verdict) {
	id := a.choice.Replica.ID
	switch outcome {
	case retry.Unreachable, retry.Reset, retry.Broken, retry.Malformed, retry.Stalled:
		b.registry.ReportFailure(id, errAnswer)
	case retry.OK:
		b.registry.Alive(id)
	default: // says nothing about whether the replica is there
	}
	if outcome.Follows() {
		d.doubts.cause = outcome.Cause()
		d.doubts.Add(b.poison, b.origin(rq, d), poison.Doubt{Replica: id, Pass: a.pass, Verdict: outcome, Begun: d.begun}, b.reporter(d))
		return
	}
	f := retry.Find(outcome, retry.Origin{Tenant: b.poison.Tenant(rq.call.Tenant)})
	b.report(d, poison.Doubt{Replica: id, Pass: a.pass}, f)
	switch {
	case !d.doubts.Open():
	case outcome == retry.OK:
		b.served(rq, d, true)
	case outcome == retry.ClientFault:
		d.doubts.Refused(b.origin(rq, d), b.reporter(d))
	}
}

// served notes that a replica serves the request, up to the end of its answer when whole is set.
func (b *blame) served(rq *request, d *delivery, whole bool) {
	if d.doubts.Open() {
		d.doubts.Served(b.poison, b.origin(rq, d), whole, b.reporter(d))
	}
}

// conclude settles the failures that no other replica was compared for.
func (b *blame) conclude(rq *request, d *delivery) {
	if d.doubts.Open() {
		d.doubts.Conclude(b.poison, b.origin(rq, d), b.reporter(d))
	}
}

// report reports a finding to the breaker, and counts it.
func (b *blame) report(d *delivery, one poison.Doubt, f retry.Finding) {
	b.breaker.Report(one.Replica, one.Pass, f)
	if f.Cause != retry.CauseNone {
		d.doubts.cause = f.Cause
		b.faults.found(f)
	}
}

func (b *blame) reporter(d *delivery) poison.Report {
	return func(one poison.Doubt, f retry.Finding) { b.report(d, one, f) }
}

// origin names the request. A body that is still coming counts as far as it has come.
func (b *blame) origin(rq *request, d *delivery) retry.Origin {
	if d.doubts.origin == (retry.Origin{}) {
		body := rq.body
		if rq.upload != nil {
			body = rq.upload.head
		}
		d.doubts.origin = b.poison.Origin(rq.call.Tenant, body, rq.call.method(), rq.call.path(), rq.call.RawQuery)
	}
	return d.doubts.origin
}

// worthRetry reports whether another replica may do better, as far as the request is known. An engine's error is compared with one
// other replica, unless the tenant is suspected, where a repetition changes nothing.
func (rt *retries) worth(rq *request, t *tries, d *delivery, f *failure) bool {
	if !f.outcome.Follows() {
		return true
	}
	from := rt.blame.origin(rq, d)
	times := rt.blame.poison.Times(from)
	if f.outcome == retry.EngineError {
		return !d.doubts.Alike() && times == 0 && rq.call.Route != openai.RouteOther && !rt.blame.poison.Suspect(from)
	}
	return times < knownPoison || t.tried() == 0
}

// withdraw takes a retry from the budget. A tenant whose requests fail on several replicas leaves half of it to the others.
func (rt *retries) withdraw(rq *request, d *delivery, f *failure) bool {
	if f.outcome.Follows() && rt.blame.poison.Suspect(rt.blame.origin(rq, d)) {
		return rt.budget.WithdrawSpare()
	}
	return rt.budget.Withdraw()
}

// pick makes the chooser decide and book the attempt, on a replica whose breaker admits it. The breaker may have changed since the
// chooser asked it, and another router's decider has not asked this one; then there is another choice, which avoids the replica.
func (p *picker) pick(rq *request, t *tries, a *attempt, choose func() error) error {
	for {
		if err := choose(); err != nil {
			return err
		}
		if p.admitted(rq, t, a) {
			return nil
		}
		a.choice.Release(chooser.Result{End: decision.EndHandedOver, PromptTokens: -1, OutputTokens: -1, CachedTokens: -1})
		t.passOver(a.choice.Replica.ID)
	}
}

// admitted takes the breaker's pass. A replica with an open breaker is used where the breaker says so: when no other one is left.
func (p *picker) admitted(rq *request, t *tries, a *attempt) (ok bool) {
	id := a.choice.Replica.ID
	if a.pass, ok = p.breaker.Allow(id); ok {
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
		a.forced = !slices.Contains(p.breaker.Bar(nil, usable, t.ask.Avoid, len(t.ask.Exclude)), id)
	}
	return a.forced
}
