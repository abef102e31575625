package attempt

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// faultLabel is a failure as the labels of metrics distinguish it.
type faultLabel struct {
	verdict retry.Verdict
	cause   retry.Cause
}

// faults counts failures.
type faults struct{ instruments.Keyed[faultLabel] }

func (f *faults) found(one retry.Finding) { f.Add(faultLabel{one.Verdict, one.Cause}) }

func newFaults(s *instruments.Set) faults {
	var all []faultLabel
	for _, v := range retry.Verdicts() {
		for _, c := range retry.Causes() {
			if v.Cause() == c || v.Follows() && (c == retry.CauseRequest || c == retry.CauseTenant) {
				all = append(all, faultLabel{v, c})
			}
		}
	}
	return faults{instruments.NewKeyed(s, intake.MetricNS+"faults", "{attempt}", "Attempts that failed, by outcome and by the party at fault (cause): request, caller, tenant, router, network, replica, rank. Only the last three count against a replica.", all,
		func(f faultLabel) metric.MeasurementOption {
			return instruments.Labels(attribute.String("cause", f.cause.String()), attribute.String("outcome", f.verdict.String()))
		})}
}
