package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
)

const (
	attackerTokens = 6000 // per minute
	limits         = "tenants: {attacker: {tokens_per_minute: 6000, token_burst: 1000}}\n"
)

// quotaAttacks take more than a tenant's limit.
func quotaAttacks() []attack {
	return []attack{
		{name: "rejected-ends", sends: "bookings released as rejected, of a tenant with 6,000 tokens per minute", fleet: fleet{settings: limits}, fast: true, run: rejectedEnds, check: withinLimit(1.05)},
		{name: "three-routers", sends: "the same tenant's requests at three routers of a fleet", fleet: fleet{routers: 3, settings: limits}, run: atThreeRouters, check: withinLimit(1.10)},
		{name: "late-reports", sends: "bookings whose first token is reported 0.15 s late, 10 per second", prepare: burstBefore, run: lateReports, check: burstAfter},
	}
}

func choice(text string) *kvpilotv1.ChooseReplicaRequest {
	return &kvpilotv1.ChooseReplicaRequest{Model: "sim", Prompt: &kvpilotv1.ChooseReplicaRequest_Text{Text: text}}
}

// rejectedEnds books prompts and says that each was rejected.
func rejectedEnds(ctx context.Context, w *world) error {
	conn, err := connect(w.router().grpc, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	routing := kvpilotv1.NewRoutingServiceClient(conn)
	every(ctx, 50, func(n int) {
		got, err := routing.ChooseReplica(as(ctx, attackerKey), choice(fmt.Sprintf("number %d: ", n)+strings.Repeat("take more than the limit ", 40)))
		if err != nil {
			w.found.add("refused", 1)
			return
		}
		w.found.add("granted", int(got.GetPromptTokens()))
		_, err = routing.ReportReservation(as(ctx, attackerKey), reports.Release(got.GetReservationId(), kvpilotv1.ReleaseReason_RELEASE_REASON_REJECTED))
		if err != nil && ctx.Err() == nil {
			w.found.add("not released", 1)
		}
	})
	return nil
}

// withinLimit checks the attacker's grants: the amount of its limit in the time of the attack, and the burst.
func withinLimit(factor float64) func(*world) (string, []string) {
	return func(w *world) (string, []string) {
		during := time.Since(w.began).Minutes()
		most := factor * (attackerTokens*during + 1000)
		granted := w.found.get("granted")
		note := fmt.Sprintf("%d tokens granted in %.1f s, at most %.0f are right", granted, 60*during, most)
		if float64(granted) > most {
			return note, []string{"the limit does not hold"}
		}
		if granted == 0 {
			return note, []string{"nothing was granted: " + w.found.String()}
		}
		return note, nil
	}
}

// atThreeRouters sends the same tenant's requests to all routers.
func atThreeRouters(ctx context.Context, w *world) error {
	client := hostile(false)
	every(ctx, 30, func(n int) {
		to := w.routers[n%len(w.routers)]
		text := fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":"number %d: %s"}`, n, strings.Repeat("take more than the limit ", 20))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.http+"/v1/completions", strings.NewReader(text))
		if err != nil {
			return
		}
		req.Header.Set("Authorization", "Bearer "+attackerKey)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			w.found.add("granted", promptTokens(resp.Body))
		} else {
			w.found.add(fmt.Sprint(resp.StatusCode), 1)
		}
	})
	return nil
}

// lateReports books, and reports first tokens later than any replica gives them.
func lateReports(ctx context.Context, w *world) error {
	conn, err := connect(w.router().grpc, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	routing := kvpilotv1.NewRoutingServiceClient(conn)
	every(ctx, 10, func(n int) {
		c := choice(fmt.Sprintf("number %d: ", n) + strings.Repeat("report late ", 200))
		c.Candidates = &kvpilotv1.Candidates{Allow: []string{"r0"}}
		got, err := routing.ChooseReplica(as(ctx, attackerKey), c)
		if err != nil {
			w.found.add("refused", 1)
			return
		}
		time.Sleep(150 * time.Millisecond) // the lie
		id := got.GetReservationId()
		_, first := routing.ReportReservation(as(ctx, attackerKey), reports.FirstToken(id))
		_, last := routing.ReportReservation(as(ctx, attackerKey), reports.Completed(id))
		if first != nil || last != nil {
			w.found.add("not reported", 1)
			return
		}
		w.found.add("reported", 1)
	})
	return nil
}

// burst sends 60 chats of one new prefix at once and returns the largest number at one replica.
func (w *world) burst(ctx context.Context, name string) int {
	document := strings.Repeat(name+" is a document that all read at once. ", 60)
	var mu sync.Mutex
	at := map[string]int{}
	var wait sync.WaitGroup
	for n := range 60 {
		wait.Go(func() {
			text := fmt.Sprintf(`{"model":"sim","max_tokens":%d,"messages":[{"role":"system","content":%q},{"role":"user","content":"question %d"}]}`, answerTokens, document, n)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.router().http+"/v1/chat/completions", strings.NewReader(text))
			if err != nil {
				return
			}
			req.Header.Set("Authorization", "Bearer key-of-tenant-a")
			req.Header.Set("Content-Type", "application/json")
			resp, err := w.honest.client.Do(req)
			if err != nil {
				return
			}
			resp.Body.Close()
			mu.Lock()
			at[resp.Header.Get("X-Kvpilot-Replica")]++
			mu.Unlock()
		})
	}
	wait.Wait()
	return slices.Max(append(slices.Collect(maps.Values(at)), 0))
}

func burstBefore(ctx context.Context, w *world) error {
	w.burst(ctx, "first") // teaches speeds
	w.found.add("before", w.burst(ctx, "second"))
	return nil
}

// burstAfter checks that the attack has not sent a burst to one replica.
func burstAfter(w *world) (string, []string) {
	before, after := w.found.get("before"), w.burst(context.Background(), "third")
	note := fmt.Sprintf("of a burst of 60, %d went to one replica before, %d after", before, after)
	if after > max(45, before+15) {
		return note, []string{"the reports moved a burst to one replica"}
	}
	return note, nil
}
