package load_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/load"
)

// A reservation of another tenant is as unknown as one that never was, while it lives and after its end.
func TestReservationsOfTenantsAreApart(t *testing.T) {
	b := load.New(load.DefaultConfig(), load.Params{})
	b.AddRank(1)
	for _, tenant := range []string{"a", "b", ""} {
		if _, err := b.Reserve(load.Request{ID: "same", Tenant: tenant, Slot: 1, PromptTokens: 10}); err != nil {
			t.Fatalf("tenant %q: %v", tenant, err)
		}
	}
	if b.Live() != 3 {
		t.Errorf("%d reservations live: ids of tenants meet", b.Live())
	}
	for _, tenant := range []string{"c", "A", "a ", "same"} {
		if _, found := b.Find(tenant, "same"); found {
			t.Errorf("tenant %q finds it", tenant)
		}
	}
	foreign := load.Key{Tenant: "c", ID: "same"}
	calls := func(when string) {
		for name, out := range map[string]load.Outcome{
			"prefill": b.PrefillDone(foreign), "progress": b.Progress(foreign, 1), "renew": b.Renew(foreign), "release": b.Release(foreign),
		} {
			if out != load.Unknown {
				t.Errorf("%s %s: %s", name, when, out)
			}
		}
	}
	calls("while it lives")
	if out := b.Release(load.Key{Tenant: "a", ID: "same"}); out != load.Applied {
		t.Errorf("the owner's release: %s", out)
	}
	if out := b.Release(load.Key{Tenant: "a", ID: "same"}); out != load.Ended {
		t.Errorf("the owner's second release: %s", out)
	}
	calls("after its end")
	if b.Live() != 2 {
		t.Errorf("%d live", b.Live())
	}
}
