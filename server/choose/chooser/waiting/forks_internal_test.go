package waiting

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// follow plays n prefixes, each continued so often within the window, and returns how many of their first requests were taken for a fork's.
func (f *forks) follow(n, often int, key *blockhash.Hash, now *time.Time) (expected int) {
	for range n {
		*key++
		for i := range often {
			if f.continues(*key, now.Add(time.Duration(i)*10*time.Millisecond)) {
				expected++
			}
		}
		*now = now.Add(time.Minute)
	}
	return expected
}

func TestForkIsExpectedWhereTheLatestPrefixesWereForked(t *testing.T) {
	var f forks
	key, now := blockhash.Hash(0), time.Unix(1e9, 0)
	if n := f.follow(20, 1, &key, &now); n != 0 {
		t.Errorf("%d forks are expected of single requests", n)
	}
	if n := f.follow(20, 43, &key, &now); n < 15 || n > 18 {
		t.Errorf("%d of 20 forks were expected", n)
	}
	if n := f.follow(20, 3, &key, &now); n > 4 {
		t.Errorf("after the last fork %d more were expected", n)
	}
	if len(f.since) > 1 {
		t.Errorf("%d prefixes are watched", len(f.since))
	}
}

func TestWatchedPrefixesAreBounded(t *testing.T) {
	var f forks
	now := time.Unix(1e9, 0)
	for i := range 10_000 {
		f.continues(blockhash.Hash(i), now)
	}
	if len(f.since) != mostForks {
		t.Errorf("%d prefixes are watched", len(f.since))
	}
	f.continues(1, now.Add(time.Minute))
	if len(f.since) != 1 {
		t.Errorf("%d prefixes are watched a minute later", len(f.since))
	}
}
