package registry

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/kit/scope"
)

// objectiveObject is the part of an InferenceObjective that matters here.
type objectiveObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Priority int     `json:"priority"`
		Pool     poolRef `json:"poolRef"`
	} `json:"spec"`
}

func (o objectiveObject) meta() objectMeta { return o.Metadata }

func (o objectiveObject) weight() int { return 1 }

// Objectives are the InferenceObjectives of the pools that the settings name: names with a priority. Priority may be called at once with Run.
type Objectives struct {
	log   *slog.Logger
	pools []InferencePoolConfig
	known []atomic.Pointer[map[string]int] // by pool
}

// NewObjectives makes the objectives of the settings' InferencePools. log may be nil.
func NewObjectives(c Config, s scope.Scope) *Objectives {
	return &Objectives{log: s.Log(), pools: c.InferencePools, known: make([]atomic.Pointer[map[string]int], len(c.InferencePools))}
}

// Priority returns the priority of an objective, higher first. ok is false when no pool has one of that name; of two pools that have one,
// the first of the settings counts.
func (o *Objectives) Priority(name string) (priority int, ok bool) {
	for i := range o.known {
		if known := o.known[i].Load(); known != nil {
			if priority, ok = (*known)[name]; ok {
				return priority, true
			}
		}
	}
	return 0, false
}

// Run follows the API servers until ctx ends. While they cannot be read, the objectives stay as they are.
func (o *Objectives) Run(ctx context.Context) error {
	return followPolicies(ctx, o.pools, o.log, "inferenceobjectives", "inference objectives", func(i int, pool string, objects map[string]objectiveObject) {
		found := map[string]int{}
		for name, object := range objects {
			if object.Spec.Pool.Name == pool || object.Spec.Pool.Name == "" {
				found[name] = object.Spec.Priority
			}
		}
		o.known[i].Store(&found)
	})
}
