package main

import (
	"bytes"
	"net/http"
	"testing"
)

// TestStreamsWithoutRawSockets sends streams and a large answer through a router whose sockets are read and
// written as package net does.
func TestStreamsWithoutRawSockets(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2, args: []string{"--set", "listen.raw_sockets=false"}})
	for turn := range 5 {
		a := f.post("/v1/chat/completions", conversation("sockets", turn+1, `,"stream":true`))
		if a.status != http.StatusOK || !bytes.HasSuffix(bytes.TrimSpace(a.body), []byte("data: [DONE]")) {
			t.Fatalf("turn %d: status %d: %s", turn, a.status, a.body)
		}
	}
	if a := f.post("/v1/completions", `{"model":"sim","prompt":"a long answer","max_tokens":400,"ignore_eos":true}`); a.status != http.StatusOK || len(a.body) < 400 {
		t.Errorf("status %d, %d bytes", a.status, len(a.body))
	}
}
