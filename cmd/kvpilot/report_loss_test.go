package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
)

// Reports are cumulative, numbered by their token count and answered one by one. A caller that loses some, repeats some
// and sends some late leaves the same load as one whose reports all arrive; what was not applied is counted; and a release that
// is lost is made up for by the lease.
func TestLostReportsOfACallerLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for a lease of three seconds")
	}
	t.Parallel()
	f := startFleet(t, fleetOptions{replicas: 2, noEvents: true, yaml: "chooser: {policy: round-robin, stall: {after: 0s}}\n"})
	type reservation struct {
		ReservationID string `json:"reservation_id"`
		ReplicaID     string `json:"replica_id"`
	}
	choose := func(id, replica string) (r reservation) {
		t.Helper()
		a := f.post("/kvpilot/v1/choose", fmt.Sprintf(`{"model":"sim","request_id":%q,"lease":"3s","candidates":{"allow":[%q]},"token_ids":{"ids":%s}}`, id, replica, idsOf(100, 640)))
		if err := json.Unmarshal(a.body, &r); err != nil || r.ReplicaID != replica {
			t.Fatalf("%d %s %v", a.status, a.body, err)
		}
		return r
	}
	report := func(r reservation, tokens int) string {
		t.Helper()
		a := f.post("/kvpilot/v1/reservations/"+r.ReservationID+":report", fmt.Sprintf(`{"progress":{"output_tokens":%d}}`, tokens))
		var body struct{ Effect string }
		if err := json.Unmarshal(a.body, &body); err != nil || a.status != http.StatusOK {
			t.Fatalf("%d tokens: %d %s %v", tokens, a.status, a.body, err)
		}
		return body.Effect
	}
	blocks := func() (all [2]float64) {
		t.Helper()
		for i := range all {
			all[i] = f.metric("kvpilot_load_blocks", fmt.Sprintf(`replica="r%d"`, i))
		}
		return all
	}
	whole, lossy := choose("whole", "r0"), choose("lossy", "r1")
	for tokens := 1; tokens <= 100; tokens++ {
		report(whole, tokens)
	}
	for _, c := range []struct {
		tokens int
		effect string
	}{
		{1, "EFFECT_APPLIED"},
		{40, "EFFECT_APPLIED"}, // 2 to 39 are lost
		{40, "EFFECT_DUPLICATE"},
		{17, "EFFECT_STALE"},
		{100, "EFFECT_APPLIED"},
		{99, "EFFECT_STALE"},
	} {
		if got := report(lossy, c.tokens); got != c.effect {
			t.Errorf("%d tokens: %s, want %s", c.tokens, got, c.effect)
		}
	}
	if b := blocks(); b[0] == 0 || b[0] != b[1] {
		t.Errorf("all reports leave %v blocks, some of them %v", b[0], b[1])
	}
	for outcome, want := range map[string]float64{"stale": 2, "duplicate": 1} {
		if got := f.metric("kvpilot_load_reports_total", `outcome="`+outcome+`"`); got != want {
			t.Errorf("%v reports counted as %s, want %v", got, outcome, want)
		}
	}
	f.post("/kvpilot/v1/reservations/"+whole.ReservationID+":report", `{"release":{"reason":"RELEASE_REASON_COMPLETED"}}`)
	f.eventually("the lease ends the reservation whose release was lost", func() bool {
		return blocks() == [2]float64{} && f.metric("kvpilot_load_ended_total", `reason="expired"`) == 1
	})
}
