package reports

import (
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
)

// What an engine has loaded or read from another one, it has not computed: as computed, it would make the engine look faster than it is.
func TestFetchedTokensWereNotComputed(t *testing.T) {
	now := time.Unix(100, 0)
	for name, tt := range map[string]struct {
		queries, hits, fetched uint64
		want                   uint64
	}{
		"nothing fetched":            {1000, 300, 0, 700},
		"most of the rest is loaded": {1000, 300, 600, 100},
		"counted before its lookup":  {1000, 300, 800, 0},
	} {
		s := enginestats.Stats{At: now, QueryTokens: tt.queries, HitTokens: tt.hits, FetchedTokens: tt.fetched, Fetches: true}
		s = new(enginestats.Senders).See(s, 0, time.Minute)
		var r Report
		if !ReportOf(&s, 0, now, &r) {
			t.Fatal("the report is stale")
		}
		if r.Uncached != tt.want || r.Fetched != tt.fetched || !r.Fetches {
			t.Errorf("%s: %d computed, %d fetched; want %d, %d", name, r.Uncached, r.Fetched, tt.want, tt.fetched)
		}
	}
}
