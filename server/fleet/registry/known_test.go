package registry_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

func TestAnUnknownModelIsAnsweredWithTheKnownOnes(t *testing.T) {
	list := func(n int) string {
		var cards []string
		for i := range n {
			cards = append(cards, fmt.Sprintf(`{"id":"model-%03d"}`, i))
		}
		return `{"data":[` + strings.Join(cards, ",") + `]}`
	}
	for name, c := range map[string]struct {
		models, asked, want string
	}{
		"one":             {`{"data":[{"id":"base"}]}`, "gpt-4", "The model `gpt-4` does not exist. The only model is `base`."},
		"misspelt":        {`{"data":[{"id":"org/Llama-3-8B"},{"id":"small"}]}`, "org/llama-3-8b", "The model `org/llama-3-8b` does not exist. Did you mean `org/Llama-3-8B`? Known models are `org/Llama-3-8B`, `small`."},
		"many":            {list(20), "x", "The model `x` does not exist. Known models are `model-000`, `model-001`, `model-002`, `model-003`, `model-004`, `model-005`, `model-006`, `model-007` and 12 more (GET /v1/models)."},
		"a long name":     {`{"data":[{"id":"base"}]}`, strings.Repeat("ä", 100), "The model `" + strings.Repeat("ä", 64) + "…` does not exist. The only model is `base`."},
		"too many to try": {list(300), "model-00", "The model `model-00` does not exist. Known models are "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet("a")
			f.set("a", func(h *host) { h.models = c.models })
			virtual(t, f, listed(spec("a")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
				pass(5 * time.Second)
				if got := r.Snapshot().UnknownModel(c.asked); !strings.HasPrefix(got, c.want) || strings.Contains(c.want, "…`") && got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
	if got := new(registry.Snapshot).UnknownModel("x"); got != "The model `x` does not exist." {
		t.Errorf("without models: %q", got)
	}
}
