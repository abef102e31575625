package decision_test

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

func TestAWaitForMemoryInWords(t *testing.T) {
	for want, w := range map[string]decision.MemoryWait{
		"its 9100 tokens do not fit into the 800 that are free, 3 programs before it, about 40s": {Tokens: 9100, Free: 800, Before: 3, Expected: 40*time.Second + 1},
		"its 9100 tokens do not fit, 1 program before it":                                        {Tokens: 9100, Before: 1},
		"its 9100 tokens fit and others go first, 2 programs before it":                          {Tokens: 9100, Free: 9100, Before: 2},
	} {
		if got := w.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
