package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// fieldAttacks say what only a router may say to an engine.
func fieldAttacks() []attack {
	return []attack{
		{name: "connector-fields", sends: "kv_transfer_params, markers of P/D in X-Request-Id, X-Original-Url and the like", fast: true, fleet: fleet{fronts: three(honestFront)}, run: connectorFields, check: noConnectorFields},
	}
}

const evilAddress = "203.0.113.9"

func connectorFields(ctx context.Context, w *world) error {
	client := hostile(false)
	bodies := []string{
		`{"model":"sim","max_tokens":1,"prompt":"hi","kv_transfer_params":{"remote_host":"` + evilAddress + `","remote_port":1,"do_remote_prefill":true,"remote_block_ids":[1]}}`,
		`{"model":"sim","max_tokens":1,"prompt":"hi","kv_transfer\u005fparams":{"remote_host":"` + evilAddress + `"}}`,
		`{"model":"sim","max_tokens":1,"prompt":"hi","kv_transfer_params":null,"kv_transfer_params":{"remote_host":"` + evilAddress + `"}}`,
		`{"model":"sim","max_tokens":1,"prompt":"hi","vllm_xargs":{"kv_transfer_params":{"remote_host":"` + evilAddress + `"}}}`,
	}
	every(ctx, 12, func(n int) {
		w.send(ctx, client, "POST", "http://"+w.router().http+"/v1/completions", bodies[n%len(bodies)],
			"X-Request-Id", fmt.Sprintf("___prefill_addr_%s:1___decode_addr_%s:2_%d", evilAddress, evilAddress, n),
			"X-Original-Url", "/"+evilAddress, "X-Rewrite-Url", "/"+evilAddress, "X-Http-Method-Override", evilAddress, "X-Accel-Redirect", "/"+evilAddress)
	})
	return nil
}

// noConnectorFields checks what reached the replicas.
func noConnectorFields(w *world) (string, []string) {
	n, leaked := 0, map[string]bool{}
	for _, f := range w.fronts {
		for _, r := range f.requests() {
			n++
			if strings.Contains(r.body, evilAddress) {
				leaked["body"] = true
			}
			for name, values := range r.header {
				if strings.Contains(strings.Join(values, ","), evilAddress) {
					leaked[name] = true
				}
			}
		}
	}
	note := fmt.Sprintf("%d requests reached replicas, the attacker's got %s", n, &w.found)
	if len(leaked) > 0 {
		return note, []string{fmt.Sprintf("the attacker's address reached replicas in %v", leaked)}
	}
	return note, nil
}

var foreign = [][2]string{
	{"/v1/../metrics", ""}, {"/../metrics", ""}, {"//evil", ""}, {"/%6detrics", ""}, {"/v1/chat/completions", "a=b c"}, {"/v1/chat completions", ""},
	{"/v1\\metrics", ""}, {"/v1/chat/completions?x=1", ""}, {"/./metrics", ""}, {"/v1/%2e%2e/metrics", ""},
}

func forwardPaths(ctx context.Context, w *world) error {
	conn, err := connect(w.router().grpc, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	inference := kvpilotv1.NewInferenceServiceClient(conn)
	every(ctx, 12, func(n int) {
		at := foreign[n%len(foreign)]
		stream, err := inference.Forward(as(ctx, "key-of-a-forwarder"), &kvpilotv1.ForwardRequest{Path: at[0], Query: at[1], Body: []byte(body("forwarder", n, false))})
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			w.found.add(at[0]+" "+at[1], 1)
		}
	})
	return nil
}

// noForeignPaths checks that replicas were asked for routes as they are written, and nothing else.
func noForeignPaths(w *world) (string, []string) {
	for _, f := range w.fronts {
		for _, r := range f.requests() {
			if strings.Contains(r.path, "metrics") || strings.Contains(r.path, "evil") || strings.ContainsAny(r.path, " \\") || strings.Contains(r.path, "..") || strings.Contains(strings.ToLower(r.path), "%6d") {
				return "", []string{fmt.Sprintf("a replica was asked for %q", r.path)}
			}
		}
	}
	return "accepted " + w.found.String(), nil
}

// promptTokens reads the usage of an answer.
func promptTokens(from io.Reader) int {
	var answer struct {
		Usage struct {
			Total int `json:"total_tokens"`
		}
	}
	if json.NewDecoder(from).Decode(&answer) != nil {
		return 0
	}
	return answer.Usage.Total
}
