package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// all are the attacks, in the order of docs/security.md.
func all() []attack {
	var list []attack
	for _, group := range [][]attack{requestAttacks(), memoryAttacks(), replicaAttacks(), quotaAttacks(), fieldAttacks()} {
		list = append(list, group...)
	}
	return list
}

func three(m manners) []manners { return []manners{m, m, m} }

// requestAttacks are requests that are at fault themselves.
func requestAttacks() []attack {
	return []attack{
		{
			name: "space-in-the-query", sends: "12 HTTP/2 requests per second with a space in the query", fast: true,
			run: func(ctx context.Context, w *world) error {
				client := hostile(true)
				every(ctx, 12, func(n int) {
					w.send(ctx, client, "POST", "http://"+w.router().http+"/v1/chat/completions?a=b%20c", body("attacker", n, false))
					w.raw(ctx, client, "/v1/chat/completions", "a=b c", body("attacker", n, false))
				})
				return nil
			},
		},
		{name: "forwarded-paths", sends: "12 Forward calls per second with a space, /../metrics, //evil, /%6detrics", fast: true, fleet: fleet{fronts: three(honestFront), settings: "router: {unknown_routes: true}\n"}, run: forwardPaths, check: noForeignPaths},
		{name: "poison", sends: "20 prompts per second at which every engine answers 500", fast: true, fleet: fleet{fronts: three(poisoned)}, run: poisoning(20, false), check: twoAttempts},
		{name: "poison-fast", sends: "the same, 60 per second", fleet: fleet{fronts: three(poisoned)}, run: poisoning(60, false), check: twoAttempts},
		{name: "poison-varied", sends: "20 per second, each another prompt", fleet: fleet{fronts: three(poisoned)}, run: poisoning(20, true)},
		{name: "poison-tokenizer", sends: "5 prompts per second at which every /tokenize answers 500", fleet: fleet{fronts: three(unreadable)}, run: poisoning(5, true), check: idsRemain},
	}
}

// poisoning sends the poison at a rate.
func poisoning(rate int, varied bool) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		client := hostile(false)
		every(ctx, rate, func(n int) {
			text := poison
			if varied {
				text = fmt.Sprintf("%s, number %d", poison, n)
			}
			w.send(ctx, client, "POST", "http://"+w.router().http+"/v1/chat/completions",
				fmt.Sprintf(`{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, text))
		})
		return nil
	}
}

// twoAttempts checks that poison costs at most two attempts per request, after the first ten requests.
func twoAttempts(w *world) (string, []string) {
	sent, attempts := 0, 0
	for code, n := range w.found.all() {
		if len(code) == 3 {
			sent += n
		}
	}
	for _, f := range w.fronts {
		for _, r := range f.requests() {
			if r.at.After(w.began) && strings.Contains(r.body, poison) && strings.HasPrefix(r.path, "/v1/") {
				attempts++
			}
		}
	}
	note := fmt.Sprintf("%d poisoned requests %s, %d attempts", sent, &w.found, attempts)
	if attempts > 2*sent+10 {
		return note, []string{"more than two attempts per poisoned request"}
	}
	return note, nil
}

// idsRemain checks that honest requests of the attacked phase were routed with exact token ids.
func idsRemain(w *world) (string, []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	page, err := get(ctx, "http://"+w.router().http+"/kvpilot/v1/decisions?page_size=100", adminKey)
	if err != nil {
		return "", []string{err.Error()}
	}
	honest, without := 0, 0
	var list struct {
		Decisions []struct {
			Tenant    string `json:"tenant"`
			Estimated bool   `json:"estimated"`
			Keyless   bool   `json:"keyless"`
		} `json:"decisions"`
	}
	if err := json.Unmarshal([]byte(page), &list); err != nil {
		return "", []string{err.Error()}
	}
	for _, d := range list.Decisions {
		if d.Tenant == "a" || d.Tenant == "b" || d.Tenant == "c" {
			honest++
			if d.Estimated || d.Keyless {
				without++
			}
		}
	}
	note := fmt.Sprintf("%d of the last %d honest decisions without token ids", without, honest)
	if without > 0 || honest == 0 {
		return note, []string{"honest requests lost their token ids"}
	}
	return note, nil
}
