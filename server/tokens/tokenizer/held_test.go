package tokenizer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

// Requests in flight that each hold long ids of their own took more memory than a small container has.
func TestRequestsHoldNoMoreIDsThanThereIsRoomFor(t *testing.T) {
	cfg := tokenizer.DefaultConfig()
	cfg.HeldBytes, cfg.CacheBytes = 1<<20, 1<<20
	pool, r := start(t, cfg), serve(t, "a", &simulated{render: true})
	body := func(i int) string {
		return fmt.Sprintf(`{"prompt":%q}`, fmt.Sprint(i, " ", strings.Repeat(fmt.Sprint(i, " fox, "), 20_000)))
	}
	var held []*tokenizer.Encoding
	refused := 0
	for i := range 12 {
		enc := encode(t, pool, body(i), r)
		if enc.Reason == tokenizer.ReasonMemory {
			if refused++; enc.Tokens < 20_000 || len(enc.IDs) > 0 {
				t.Errorf("without room there are %d ids of a prompt of %d tokens", len(enc.IDs), enc.Tokens)
			}
			continue
		}
		held = append(held, enc)
	}
	if len(held) == 0 || refused == 0 {
		t.Fatalf("%d prompts found room, %d did not", len(held), refused)
	}
	for _, enc := range held {
		enc.Release()
		enc.Release()
	}
	if enc := encode(t, pool, body(99), r); enc.Reason != "" {
		t.Errorf("after all requests have ended there is no room: %s", enc.Reason)
	}
	var none *tokenizer.Encoding
	none.Release()
}
