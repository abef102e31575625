// Package promql runs every PromQL query that kvpilot ships (dashboard, rules, alerts) with Prometheus' own engine over the metrics of a
// real router, so that no panel stays empty and no rule fails because a metric or a label has another name.
//
// It is a module of its own because Prometheus brings many dependencies. make test-promql runs it.
package promql
