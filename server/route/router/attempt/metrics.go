package attempt

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// metrics counts attempts.
type metrics struct {
	Retries   instruments.Keyed[retry.Verdict] `metric:"kvpilot.router.retries" unit:"{attempt}" by:"outcome" help:"Attempts on another replica, by the outcome of the previous attempt."`
	Faults    instruments.Keyed[fault]         `metric:"kvpilot.router.faults" unit:"{attempt}" by:"cause outcome" help:"Attempts that failed, by outcome and by the party at fault (cause): request, caller, tenant, router, network, replica, rank. Only the last three count against a replica."`
	Aborted   metric.Int64Counter              `metric:"kvpilot.router.aborted" unit:"{answer}" help:"Answers that an engine aborted (finish reason abort), such as one that was paused or put to sleep."`
	Keyless   metric.Int64Counter              `metric:"kvpilot.router.keyless" unit:"{request}" by:"reason" help:"Requests placed by load because they lack their policy's key, by reason: no_prompt, truncated, no_text, no_session, or why there are no token ids."`
	Prefills  instruments.Keyed[string]        `metric:"kvpilot.router.prefills" unit:"{request}" by:"result" help:"Prompts of split requests by the result of the replica that computes them: done, refused, failed, unreachable, late, no_cache (it passed no cache on), mismatch (it counted other tokens) or canceled. All but done and canceled are served whole by another attempt."`
	Transfers instruments.Keyed[string]        `metric:"kvpilot.router.transfers" unit:"{request}" by:"result" help:"Caches computed for another replica, by result: read, lost (that replica failed before its first token) or left (the client left). Blocks of the last two stay pinned for the engine's lease."`
	// Pinned counts the prompts whose blocks wait at the replica that computed them for the end of their lease.
	Pinned  metric.Int64UpDownCounter   `metric:"kvpilot.router.pinned_prompts" unit:"{request}" help:"Prompts whose blocks are believed pinned at the replica that computed them: no other replica has read them."`
	Copies  instruments.Keyed[string]   `metric:"kvpilot.router.copies" unit:"{copy}" by:"result" help:"Copies of prompts' beginnings from one replica's cache to another's, by result: done, missing (done, but the source had to compute a part), source (it refused or failed), no_cache (it passed no cache on), mismatch (it counted other tokens), target (it refused or failed) or late (one of them took far longer than predicted, or is gone)."`
	Resumes instruments.Keyed[string]   `metric:"kvpilot.router.resumes" unit:"{stream}" by:"result" help:"Streams that ended early, after their first byte, by result: resumed, moved (from a replica that drains), ended (only the end was missing), or the reason why they were not resumed."`
	Poison  metric.Int64ObservableGauge `metric:"kvpilot.router.poison" unit:"{request}" help:"Remembered requests that failed in the same way on two replicas: they are not retried, and count against no replica."`
}

// newMetrics declares the metrics. poisoned is the number of requests that are known to fail everywhere.
func newMetrics(p metric.MeterProvider, poisoned func() int) *metrics {
	m := &metrics{}
	s := instruments.Declare(p, "server/route/router", m)
	for _, v := range retry.Verdicts() {
		if v.Retryable() {
			m.Retries.Know(v)
		}
		for _, c := range retry.Causes() {
			if v.Cause() == c || v.Follows() && (c == retry.CauseRequest || c == retry.CauseTenant) {
				m.Faults.Know(fault{v, c})
			}
		}
	}
	m.Prefills.Know(prefillDone, prefillRefused, prefillFailed, prefillUnreachable, prefillLate, prefillNoCache, prefillMismatch, prefillCanceled)
	m.Transfers.Know(transferRead, transferLost, transferLeft)
	m.Copies.Know(copyDone, copyMissing, copySource, copyNoCache, copyMismatch, copyTarget, copyLate)
	s.Observe(func(o metric.Observer) { o.ObserveInt64(m.Poison, int64(poisoned())) })
	return m
}

// fault is a failure as the labels of metrics distinguish it.
type fault struct {
	verdict retry.Verdict
	cause   retry.Cause
}

// Labels has the labels of the key in metrics.
func (f fault) Labels() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("cause", f.cause.String()), attribute.String("outcome", f.verdict.String())}
}

// found counts a failure.
func (m *metrics) found(one retry.Finding) { m.Faults.Add(fault{one.Verdict, one.Cause}) }
