package registry

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"
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

func (o rewriteObject) meta() objectMeta { return o.Metadata }

func (o rewriteObject) weight() int { return max(1, len(o.Spec.Rules)) }

// Rewrites are the InferenceModelRewrites of the pools that the settings name. Model may be called at once with Run.
type Rewrites struct {
	log   *slog.Logger
	pools []InferencePoolConfig
	known []atomic.Pointer[rewriteRules] // by pool
}

// rewriteRules are the rules of one pool: by the model that they match, and the rule for all others.
type rewriteRules struct {
	exact map[string]targets
	rest  targets
}

// NewRewrites makes the rewrites of the settings' InferencePools. log may be nil.
func NewRewrites(c Config, log *slog.Logger) *Rewrites {
	return &Rewrites{log: orDiscard(log), pools: c.InferencePools, known: make([]atomic.Pointer[rewriteRules], len(c.InferencePools))}
}

// Model returns the model for a request that asks for one. Requests with the same key, such as the requests of a session, get the same
// one while the rules stay. ok is false when no rule matches; of two pools with a rule that does, the first of the settings counts.
func (w *Rewrites) Model(asked, key string) (model string, ok bool) {
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
			return pickTarget(to, asked, key), true
		}
	}
	return "", false
}

// share is the weight of a target. Either all targets of a rule have one or none.
func (t target) share() uint64 {
	if t.Weight == nil {
		return 1
	}
	return uint64(max(0, *t.Weight))
}

// pickTarget picks one by the key. The models of a rule share the keys by their weights.
func pickTarget(to targets, asked, key string) string {
	var sum uint64
	for _, t := range to {
		sum += t.share()
	}
	if sum == 0 {
		return to[0].Model
	}
	at := xxh3.HashString(asked+"\x00"+key) % sum
	for _, t := range to {
		if at < t.share() {
			return t.Model
		}
		at -= t.share()
	}
	return to[len(to)-1].Model
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
	rules := rewriteRules{exact: map[string]targets{}}
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
			if len(rule.Matches) == 0 && rules.rest == nil {
				rules.rest = rule.Targets
			}
			for _, match := range rule.Matches {
				if name := match.Model.Value; name != "" && rules.exact[name] == nil {
					rules.exact[name] = rule.Targets
				}
			}
		}
	}
	return rules
}
