package remote

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// TestIDsTakeNoMoreThanTheyNeed: the cache keeps them, and counts their length.
func TestIDsTakeNoMoreThanTheyNeed(t *testing.T) {
	for _, id := range []int{1, 151_643} {
		var a Answer
		body := rawjson.Trusted([]byte(`{"tokens":[` + strings.Repeat(fmt.Sprintf("%d,", id), 4999) + fmt.Sprint(id) + `]}`))
		if _, err := a.readIDs(&body, "tokenize", "tokens", nil); err != nil {
			t.Fatal(err)
		}
		if ids := a.IDs[0]; len(ids) != 5000 || cap(ids) > 5120 { // what the allocator rounds up to
			t.Errorf("ids of %d: %d in the space of %d", id, len(ids), cap(ids))
		}
	}
}
