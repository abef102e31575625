package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// verdict is the effect of an attack on the honest tenants and on the router.
type verdict struct {
	// calm are the honest requests without an attack, elsewhere those while another router is attacked, under those while theirs is.
	calm, elsewhere, under []result
	// idle and peak are the router's resident memory before and at most during the attack, bound is its limit; all in MiB.
	idle, peak, bound int64
	note              string
	faults            []string
}

// judge compares the attacked phase with the undisturbed one.
func (v *verdict) judge(a attack, o options) {
	if n, first := failures(v.calm); n > 0 {
		v.fault("%d honest requests failed without an attack: %s", n, first)
	}
	if n, first := failures(v.under); n > 0 {
		v.fault("%d of %d honest requests failed (%s): %s", n, len(v.under), byTenant(v.under), first)
	}
	if v.peak > v.bound {
		v.fault("%d MiB resident, bound %d", v.peak, v.bound)
	}
	if o.fast || a.slower {
		return
	}
	if before, during := max(p99(v.calm), p99(v.elsewhere)), p99(v.under); during > 2*before {
		v.fault("p99 %s, without the attack at this router at most %s", round(during), round(before))
	}
}

func (v *verdict) fault(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

const head = `| attack | honest requests | failed | p50 undisturbed / elsewhere / attacked | p99 | MiB idle → peak | |
|---|---|---|---|---|---|---|
`

// row is the verdict as a row of a Markdown table.
func (v verdict) row(a attack) string {
	failed, _ := failures(v.under)
	end := "holds"
	if len(v.faults) > 0 {
		end = "**FAILS**: " + strings.Join(v.faults, "; ")
	}
	if v.note != "" {
		end += "; " + v.note
	}
	return fmt.Sprintf("| %s: %s | %d | %d | %s / %s / %s | %s / %s / %s | %d → %d | %s |\n", a.name, a.sends, len(v.under), failed,
		round(quantile(v.calm, 0.5)), round(quantile(v.elsewhere, 0.5)), round(quantile(v.under, 0.5)), round(p99(v.calm)), round(p99(v.elsewhere)), round(p99(v.under)), v.idle, v.peak, end)
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func failures(of []result) (n int, first string) {
	for _, r := range of {
		if r.fault == "" {
			continue
		}
		if n == 0 {
			first = fmt.Sprintf("tenant %s: %s", r.tenant, r.fault)
		}
		n++
	}
	return n, first
}

// byTenant counts the failures of each tenant.
func byTenant(of []result) string {
	counts := map[string]int{}
	for _, r := range of {
		if r.fault != "" {
			counts[r.tenant]++
		}
	}
	var parts []string
	for _, tenant := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", tenant, counts[tenant]))
	}
	return strings.Join(parts, ", ")
}

func p99(of []result) time.Duration { return quantile(of, 0.99) }

// quantile is a quantile of whole answers; failed ones have none.
func quantile(of []result, q float64) time.Duration {
	var took []time.Duration
	for _, r := range of {
		if r.fault == "" {
			took = append(took, r.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))]
}
