package registry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
)

const newRewrites = "/apis/llm-d.ai/v1alpha2/namespaces/models/inferencemodelrewrites"

// rewriteRule is a rule as JSON has it: for some models, or without them for all.
func rewriteRule(models []string, targets ...any) apiObject {
	rule := apiObject{"targets": targets}
	if models != nil {
		matches := []any{}
		for _, m := range models {
			matches = append(matches, apiObject{"model": apiObject{"type": "Exact", "value": m}})
		}
		rule["matches"] = matches
	}
	return rule
}

func to(model string, weight int) apiObject {
	t := apiObject{"modelRewrite": model}
	if weight > 0 {
		t["weight"] = weight
	}
	return t
}

func (a *apiServer) putRewrite(name, created, pool string, rules ...any) {
	a.put(newRewrites, name, apiObject{"metadata": apiObject{"creationTimestamp": created}, "spec": apiObject{"poolRef": apiObject{"name": pool}, "rules": rules}})
}

func TestRewritesAreFollowed(t *testing.T) {
	a := newAPIServer(t)
	a.putRewrite("b-old", "2026-01-01T00:00:00Z", "vllm", rewriteRule([]string{"gpt", "other"}, to("sim", 0)), rewriteRule([]string{"gpt"}, to("never", 0)))
	a.putRewrite("a-new", "2026-02-01T00:00:00Z", "vllm", rewriteRule([]string{"gpt"}, to("newer", 0)), rewriteRule(nil, to("rest", 0)))
	a.putRewrite("elsewhere", "2025-01-01T00:00:00Z", "another", rewriteRule([]string{"gpt"}, to("elsewhere", 0)))
	w := registry.NewRewrites(a.config(nil), scope.Scope{})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	is := func(what, asked, want string) {
		t.Helper()
		eventually(t, what, func() bool { return targetsText(w.Targets(asked)) == want })
	}
	is("the older object's first rule", "gpt", "sim:1")
	is("a rule of two models", "other", "sim:1")
	is("no rule names it: that for all", "unknown", "rest:1")
	a.put(newRewrites, "a-new", nil)
	is("that is gone", "unknown", "")
	a.putRewrite("b-old", "2026-01-01T00:00:00Z", "vllm", rewriteRule([]string{"gpt"}, to("canary", 1), to("stable", 3)), rewriteRule([]string{"equal"}, to("x", 0), to("y", 0)), rewriteRule([]string{"empty"}))
	is("a rule without targets", "empty", "")
	is("the weights", "gpt", "canary:1 stable:3")
	is("no weights", "equal", "x:1 y:1")
}

// targetsText has the models and weights of targets.
func targetsText(list []registry.Target) string {
	var words []string
	for _, t := range list {
		words = append(words, fmt.Sprintf("%s:%d", t.Model, t.Weight))
	}
	return strings.Join(words, " ")
}
