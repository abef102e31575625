package selector

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// DefaultParams returns the policies' numbers before an operator or a request sets any.
func DefaultParams() decision.Params {
	return decision.Params{
		CPUCredit:  0.75,
		DiskCredit: 0.25,

		OverlapCredit: 1,
		PrefillScale:  1,

		PrefixWeight: 2,
		QueueWeight:  1,
		KVWeight:     1,

		MatchThreshold: 0.1,

		SessionBonus: 0.05,

		Interference: usualInterference,
		Congestion:   1.5,
	}
}

// usualInterference is the default weight of the answers that a prefill delays.
const usualInterference = 0.24

// ForObjective returns base with the numbers that o sets.
func ForObjective(base decision.Params, o decision.Objective) decision.Params {
	if o == decision.ObjectiveTTFT {
		base.Interference = 0.04
	}
	return base
}

// numbers lists the parameters that may be set, with the place of each in p.
func numbers(p *decision.Params) map[string]*float64 {
	return map[string]*float64{
		"temperature":         &p.Temperature,
		"cpu_credit":          &p.CPUCredit,
		"disk_credit":         &p.DiskCredit,
		"overlap_credit":      &p.OverlapCredit,
		"credit_decay":        &p.CreditDecay,
		"prefill_scale":       &p.PrefillScale,
		"request_weight":      &p.RequestWeight,
		"prefix_weight":       &p.PrefixWeight,
		"queue_weight":        &p.QueueWeight,
		"kv_weight":           &p.KVWeight,
		"match_threshold":     &p.MatchThreshold,
		"imbalance_threshold": &p.ImbalanceThreshold,
		"session_bonus":       &p.SessionBonus,
		"split_bonus":         &p.SplitBonus,
		"interference":        &p.Interference,
		"congestion":          &p.Congestion,
	}
}

// Numbers returns the numbers of p that are not 0, by the names that operators and callers use.
func Numbers(p *decision.Params) map[string]float64 {
	out := map[string]float64{}
	for name, value := range numbers(p) {
		if *value != 0 {
			out[name] = *value
		}
	}
	return out
}

// Apply returns base with the numbers of set, by the names of Numbers. It names
// every unknown name and bad number at once.
func Apply(base decision.Params, set map[string]float64) (decision.Params, error) {
	if len(set) == 0 {
		return base, nil
	}
	places := numbers(&base)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(set)) {
		place, known := places[name]
		switch value := set[name]; {
		case !known:
			errs = append(errs, fmt.Errorf("unknown weight %q; known are %s", name, strings.Join(slices.Sorted(maps.Keys(places)), ", ")))
		case value < 0 || math.IsNaN(value) || math.IsInf(value, 0):
			errs = append(errs, fmt.Errorf("weight %s: must be a number of at least 0, not %v", name, value))
		case (name == "cpu_credit" || name == "disk_credit" || name == "match_threshold") && value > 1:
			errs = append(errs, fmt.Errorf("weight %s: must be at most 1, not %v", name, value))
		default:
			*place = value
		}
	}
	return base, errors.Join(errs...)
}
