package router

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// blame finds the party at fault for the failures of attempts, and reports it to breaker and registry.
type blame struct {
	registry *registry.Registry
	breaker  *breaker.Breaker
	poison   *poison.Memory
	faults   *faults
}

// settle reports the outcome of an attempt to breaker and registry.
func (b *blame) settle(rq *intake.Request, d *delivery, a *attempt, outcome retry.Verdict) {
	b.settleAt(rq, d, a.choice.Replica.ID, a.pass, outcome)
}

// settleAt reports the outcome of what a replica was asked for, to breaker and registry.
func (b *blame) settleAt(rq *intake.Request, d *delivery, id replica.ID, pass breaker.Pass, outcome retry.Verdict) {
	switch outcome {
	case retry.Unreachable, retry.Reset, retry.Broken, retry.Malformed, retry.Stalled:
		b.probe(id)
	case retry.OK:
		b.registry.Alive(id)
	default: // says nothing about whether the replica is there
	}
	if outcome.Follows() {
		d.doubts.cause = outcome.Cause()
		d.doubts.Add(b.poison, b.origin(rq, d), poison.Doubt{Replica: id, Pass: pass, Verdict: outcome, Begun: d.begun, At: d.scan.ContentEvents()}, b.reporter(d))
		return
	}
	f := retry.Find(outcome, retry.Origin{Tenant: b.poison.Tenant(rq.Call.Tenant)})
	b.report(d, poison.Doubt{Replica: id, Pass: pass}, f)
	switch {
	case !d.doubts.Open():
	case outcome == retry.OK:
		b.served(rq, d, true)
	case outcome == retry.ClientFault:
		d.doubts.Refused(b.origin(rq, d), b.reporter(d))
	}
}

// served notes that a replica serves the request, up to the end of its answer when whole is set.
func (b *blame) served(rq *intake.Request, d *delivery, whole bool) {
	if d.doubts.Open() {
		d.doubts.Served(b.poison, b.origin(rq, d), whole, b.reporter(d))
	}
}

// conclude settles the failures that no other replica was compared for.
func (b *blame) conclude(rq *intake.Request, d *delivery) {
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
func (b *blame) origin(rq *intake.Request, d *delivery) retry.Origin {
	if d.doubts.origin == (retry.Origin{}) {
		body := rq.Body
		if rq.Upload != nil {
			body = rq.Upload.Head
		}
		d.doubts.origin = b.poison.Origin(rq.Call.Tenant, body, rq.Call.EngineMethod(), rq.Call.EnginePath(), rq.Call.RawQuery)
	}
	return d.doubts.origin
}

// times is how often two replicas have failed the request before.
func (b *blame) times(rq *intake.Request, d *delivery) int { return b.poison.Times(b.origin(rq, d)) }

// suspects reports whether requests of the tenant fail on several replicas.
func (b *blame) suspects(rq *intake.Request, d *delivery) bool {
	return b.poison.Suspect(b.origin(rq, d))
}

// errAnswer is why the registry is asked to probe a replica again.
var errAnswer = errors.New("a request to the replica failed")

// sendable reports why no replica can be sent the call, before anything is done for it.
func (b *blame) sendable(call *intake.Call) error {
	path, method := cmp.Or(call.Path, "/"), cmp.Or(call.Method, http.MethodPost)
	if err := upstream.CheckLine(method, path, call.RawQuery); err != nil {
		b.faults.found(retry.Find(retry.Unsendable, retry.Origin{}))
		return unsendable(err)
	}
	return nil
}

// probe has a replica probed.
func (b *blame) probe(id replica.ID) { b.registry.ReportFailure(id, errAnswer) }
