package attempt

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
	metrics  *metrics
}

// Settle reports the outcome of an attempt to breaker and registry.
func (b *blame) Settle(rq *intake.Request, d *Delivery, a *Attempt, outcome retry.Verdict) {
	b.settleAt(rq, d, a.Choice.Replica.ID, a.pass, outcome)
}

// settleAt reports the outcome of what a replica was asked for, to breaker and registry.
func (b *blame) settleAt(rq *intake.Request, d *Delivery, id replica.ID, pass breaker.Pass, outcome retry.Verdict) {
	switch outcome {
	case retry.Unreachable, retry.Reset, retry.Broken, retry.Malformed, retry.Stalled:
		b.Probe(id)
	case retry.OK:
		b.registry.Alive(id)
	default: // says nothing about whether the replica is there
	}
	if outcome.Follows() {
		d.doubts.Cause = outcome.Cause()
		d.doubts.Add(b.poison, b.origin(rq, d), poison.Doubt{Replica: id, Pass: pass, Verdict: outcome, Begun: d.begun, At: d.Scan.ContentEvents()}, b.reporter(d))
		return
	}
	f := retry.Find(outcome, retry.Origin{Tenant: b.poison.Tenant(rq.Call.Tenant)})
	b.report(d, poison.Doubt{Replica: id, Pass: pass}, f)
	switch {
	case !d.doubts.Open():
	case outcome == retry.OK:
		b.Served(rq, d, true)
	case outcome == retry.ClientFault:
		d.doubts.Refused(b.origin(rq, d), b.reporter(d))
	}
}

// Served notes that a replica serves the request, up to the end of its answer when whole is set.
func (b *blame) Served(rq *intake.Request, d *Delivery, whole bool) {
	if d.doubts.Open() {
		d.doubts.Served(b.poison, b.origin(rq, d), whole, b.reporter(d))
	}
}

// Conclude settles the failures that no other replica was compared for.
func (b *blame) Conclude(rq *intake.Request, d *Delivery) {
	if d.doubts.Open() {
		d.doubts.Conclude(b.poison, b.origin(rq, d), b.reporter(d))
	}
}

// report reports a finding to the breaker, and counts it.
func (b *blame) report(d *Delivery, one poison.Doubt, f retry.Finding) {
	b.breaker.Report(one.Replica, one.Pass, f)
	if f.Cause != retry.CauseNone {
		d.doubts.Cause = f.Cause
		b.metrics.found(f)
	}
}

func (b *blame) reporter(d *Delivery) poison.Report {
	return func(one poison.Doubt, f retry.Finding) { b.report(d, one, f) }
}

// origin names the request. A body that is still coming counts as far as it has come.
func (b *blame) origin(rq *intake.Request, d *Delivery) retry.Origin {
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
func (b *blame) times(rq *intake.Request, d *Delivery) int { return b.poison.Times(b.origin(rq, d)) }

// suspects reports whether requests of the tenant fail on several replicas.
func (b *blame) suspects(rq *intake.Request, d *Delivery) bool {
	return b.poison.Suspect(b.origin(rq, d))
}

// errAnswer is why the registry is asked to probe a replica again.
var errAnswer = errors.New("a request to the replica failed")

// Sendable reports why no replica can be sent the call, before anything is done for it.
func (b *blame) Sendable(call *intake.Call) error {
	path, method := cmp.Or(call.Path, "/"), cmp.Or(call.Method, http.MethodPost)
	if err := upstream.CheckLine(method, path, call.RawQuery); err != nil {
		b.metrics.found(retry.Find(retry.Unsendable, retry.Origin{}))
		return unsendable(err)
	}
	return nil
}

// Probe has a replica probed.
func (b *blame) Probe(id replica.ID) { b.registry.ReportFailure(id, errAnswer) }
