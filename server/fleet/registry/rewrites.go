package registry

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// rewriteObject is the part of an InferenceModelRewrite that matters here.
type rewriteObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Pool  poolRef             `json:"poolRef"`
		Rules capped[rewriteRule] `json:"rules"`
	} `json:"spec"`
}

// rewriteRule gives requests for some models another one. Without matches it is for all models.
type rewriteRule struct {
	Matches capped[struct {
		Model struct {
			Value string `json:"value"`
		} `json:"model"`
	}] `json:"matches"`
	Targets targets `json:"targets"`
}

// targets share the requests of a rule by their weights.
type targets = capped[target]

type target struct {
	Model  string `json:"modelRewrite"`
	Weight *int   `json:"weight"`
}

// Target is a model in place of another one.
type Target struct {
	Model string
	// Weight is its share of the sum of all targets' weights.
	Weight int
}

func (o rewriteObject) meta() objectMeta { return o.Metadata }

func (o rewriteObject) weight() int { return max(1, len(o.Spec.Rules)) }

// Rewrites are the InferenceModelRewrites of the pools that the settings name. Targets may be called at once with Run.
type Rewrites struct {
	log   *slog.Logger
	pools []InferencePoolConfig
	known []atomic.Pointer[rewriteRules] // by pool
}

// rewriteRules are the rules of one pool: by the model that they match, and the rule for all others.
type rewriteRules struct {
	exact map[string][]Target
	rest  []Target
}

// NewRewrites makes the rewrites of the settings' InferencePools. log may be nil.
func NewRewrites(c Config, s scope.Scope) *Rewrites {
	return &Rewrites{log: s.Log(), pools: c.InferencePools, known: make([]atomic.Pointer[rewriteRules], len(c.InferencePools))}
}

// Targets returns the models for requests that ask for one, which share them by their weights; nil when no rule matches. Of two pools with a
// rule that does, the first of the settings counts. The list must not be changed.
func (w *Rewrites) Targets(asked string) []Target {
	for i := range w.known {
		rules := w.known[i].Load()
		if rules == nil {
			continue
		}
		to, exact := rules.exact[asked]
		if !exact {
			to = rules.rest
		}
		if len(to) > 0 {
			return to
		}
	}
	return nil
}

// maxTargetWeight bounds the weight of a target, as its definition does.
const maxTargetWeight = 1_000_000

// share is the weight of a target. Either all targets of a rule have one or none.
func (t target) share() int {
	if t.Weight == nil {
		return 1
	}
	return min(max(0, *t.Weight), maxTargetWeight)
}

// targetsOf are the targets of a rule. Where all have the weight 0, the first one gets all.
func targetsOf(list targets) []Target {
	out, sum := make([]Target, len(list)), 0
	for i, t := range list {
		out[i] = Target{t.Model, t.share()}
		sum += out[i].Weight
	}
	if sum == 0 {
		out[0].Weight = 1
	}
	return out
}

// Run follows the API servers until ctx ends. While they cannot be read, the rewrites stay as they are.
func (w *Rewrites) Run(ctx context.Context) error {
	return followPolicies(ctx, w.pools, w.log, "inferencemodelrewrites", "inference model rewrites", func(i int, pool string, objects map[string]rewriteObject) {
		rules := readRewrites(pool, objects)
		w.known[i].Store(&rules)
	})
}

// readRewrites orders the rules: of two that match a model the rule of the older object counts, and within an object the first. A rule for
// one model counts more than one for all.
func readRewrites(pool string, objects map[string]rewriteObject) rewriteRules {
	rules := rewriteRules{exact: map[string][]Target{}}
	list := slices.SortedFunc(maps.Values(objects), func(a, b rewriteObject) int {
		return cmp.Or(cmp.Compare(a.Metadata.Created, b.Metadata.Created), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, object := range list {
		if object.Spec.Pool.Name != pool {
			continue
		}
		for _, rule := range object.Spec.Rules {
			if len(rule.Targets) == 0 || slices.ContainsFunc(rule.Targets, func(t target) bool { return t.Model == "" }) {
				continue
			}
			to := targetsOf(rule.Targets)
			if len(rule.Matches) == 0 && rules.rest == nil {
				rules.rest = to
			}
			for _, match := range rule.Matches {
				if name := match.Model.Value; name != "" && rules.exact[name] == nil {
					rules.exact[name] = to
				}
			}
		}
	}
	return rules
}
