package decision_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestAnOverlapIsCutFromItsEnd(t *testing.T) {
	for tokens, want := range map[int]decision.Overlap{
		-1: {}, 0: {}, 30: {GPU: 30}, 64: {GPU: 64}, 70: {GPU: 64, CPU: 6}, 85: {GPU: 64, CPU: 16, Disk: 5}, 200: {GPU: 64, CPU: 16, Disk: 8},
	} {
		held := decision.Overlap{GPU: 64, CPU: 16, Disk: 8}
		if held.Cut(tokens); held != want || int(held.Tokens()) > max(0, tokens) {
			t.Errorf("cut to %d tokens: %+v, want %+v", tokens, held, want)
		}
	}
}
