package pins

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Max: 2, TTL: 60e9})
		p.Put("", "a", "r1")
		p.Put("", "b", "r2")
		p.Get("", "a")
		p.Put("", "c", "r3")
		p.Put("", "", "r4")
		for id, want := range map[string]replica.ID{"a": "r1", "b": "", "c": "r3", "": ""} {
			if got, owner := p.Get("", id); got != want || (owner == OwnerSelf) != (want != "") {
				t.Errorf("%q: got %q, want %q", id, got, want)
			}
		}
		time.Sleep(61e9)
		if _, owner := p.Get("", "a"); owner != OwnerUnknown {
			t.Error("remembered for longer than the TTL")
		}
	})
}

func TestPinsHaveOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Max: 2, TTL: 60e9})
		p.Put("team-a", "r", "at-a")
		p.Put("team-b", "r", "at-b") // the first owner stays
		for _, tc := range []struct {
			tenant string
			at     replica.ID
			owner  Owner
		}{{"team-a", "at-a", OwnerSelf}, {"team-b", "", OwnerOther}, {"", "at-a", OwnerSelf}} {
			if at, owner := p.Get(tc.tenant, "r"); at != tc.at || owner != tc.owner {
				t.Errorf("tenant %q: %q, %v", tc.tenant, at, owner)
			}
		}
		time.Sleep(61e9)
		p.Put("team-b", "r", "at-b")
		if at, owner := p.Get("team-b", "r"); at != "at-b" || owner != OwnerSelf {
			t.Errorf("after the first owner's time: %q, %v", at, owner)
		}
	})
}
