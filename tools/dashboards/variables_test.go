package main

import (
	"strings"
	"testing"
)

func TestExpressionsFollowTheVariables(t *testing.T) {
	for in, want := range map[string]string{
		"sum(kvpilot_kvindex_memory_bytes)":                                  `sum(kvpilot_kvindex_memory_bytes{instance=~"$instance"})`,
		"sum by (le) (rate(kvpilot_router_ttft_seconds_bucket" + rate + "))": `sum by (le) (rate(kvpilot_router_ttft_seconds_bucket{instance=~"$instance",model=~"$model"}` + rate + "))",
		`max by (replica) (kvpilot_upstream_breaker_state{state="open"})`:    `max by (replica) (kvpilot_upstream_breaker_state{state="open",instance=~"$instance",replica=~"$replica"})`,
		"go_memstats_heap_inuse_bytes" + ours:                                `go_memstats_heap_inuse_bytes{instance=~"$instance"} * on (job, instance) group_left (version) kvpilot_build_info{instance=~"$instance"}`,
	} {
		if got := chosen(in); got != want {
			t.Errorf("chosen(%s) =\n%s, want\n%s", in, got, want)
		}
	}
}

// TestEachVariableIsUsed: a variable that narrows nothing misleads, and so does a metric in the lists that no panel shows.
func TestEachVariableIsUsed(t *testing.T) {
	var all []string
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				all = append(all, q[0])
			}
		}
	}
	text := strings.Join(all, "\n")
	for _, name := range append(append([]string{}, byModel...), byReplica...) {
		if !strings.Contains(text, name) {
			t.Errorf("%s is narrowed by a variable, and no panel asks for it", name)
		}
	}
}
