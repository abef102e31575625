package registry_test

import (
	"context"
	"testing"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const (
	newObjectives = "/apis/llm-d.ai/v1alpha2/namespaces/models/inferenceobjectives"
	oldObjectives = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/models/inferenceobjectives"
)

func (a *apiServer) putObjective(path, name, pool string, priority int) {
	a.put(path, name, apiObject{"spec": apiObject{"priority": priority, "poolRef": apiObject{"name": pool}}})
}

// follow runs the objectives until the test ends.
func follow(t *testing.T, c registry.Config) *registry.Objectives {
	t.Helper()
	o := registry.NewObjectives(c, scope.Scope{})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return o
}

func TestObjectivesAreFollowed(t *testing.T) {
	a := newAPIServer(t)
	a.putObjective(newObjectives, "urgent", "vllm", 10)
	a.putObjective(newObjectives, "elsewhere", "another", 5)
	a.putObjective(oldObjectives, "urgent", "vllm", 1)
	a.putObjective(oldObjectives, "old", "vllm", 2)
	o := follow(t, a.config(nil))
	is := func(what, name string, want int, known bool) {
		t.Helper()
		eventually(t, what, func() bool { got, ok := o.Priority(name); return got == want && ok == known })
	}
	is("an objective", "urgent", 10, true)
	is("of another pool", "elsewhere", 0, false)
	is("of the old group, which does not count next to the new one", "old", 0, false)
	a.putObjective(newObjectives, "urgent", "vllm", -3)
	is("another priority", "urgent", -3, true)
	a.breakWatches(true)
	a.put(newObjectives, "urgent", nil)
	is("it is gone", "urgent", 0, false)
}

// A cluster may have the old group alone, or none.
func TestObjectivesOfTheOldGroupCountAlone(t *testing.T) {
	a := newAPIServer(t)
	a.missing[newObjectives] = true
	a.putObjective(oldObjectives, "old", "vllm", 2)
	o := follow(t, a.config(nil))
	eventually(t, "the old group", func() bool { got, ok := o.Priority("old"); return ok && got == 2 })
	if _, ok := follow(t, registry.DefaultConfig()).Priority("old"); ok {
		t.Error("a router without pools has objectives")
	}
}
