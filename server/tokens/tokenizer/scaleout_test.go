package tokenizer_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// A vLLM 0.32.0 that was started without --enable-scale-out answers 403 on /render. That is no
// refusal of the router: its /tokenize works.
func TestRenderHiddenByAFlagFallsBackToTokenize(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := enginesim.DefaultConfig()
	cfg.ScaleOut = false
	engine, err := enginesim.New(cfg, enginesim.Params{HTTP: ln})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	defer func() { stop(); <-done; http.DefaultClient.CloseIdleConnections() }()

	pool := tokenizer.New(tokenizer.DefaultConfig(), tokenizer.Params{})
	running := make(chan error, 1)
	go func() { running <- pool.Run(ctx) }()
	defer func() { stop(); <-running }()
	r := &replica.Replica{ID: "a", URL: "http://" + ln.Addr().String(), State: replica.StateReady, Version: "0.32.0", Slots: []replica.Slot{0}, Models: []replica.Model{{ID: "sim"}}}
	body := []byte(`{"model":"sim","messages":[{"role":"user","content":"hello there"}]}`)
	p := &prompt.Prompt{Kind: prompt.KindChat, API: prompt.APIChat, Model: "sim", Body: body, Messages: [][]byte{[]byte(`{"role":"user","content":"hello there"}`)}}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	enc, err := pool.Encode(wait, tokenizer.Request{Prompt: p, Replicas: []*replica.Replica{r}, Pool: "sim"})
	if err != nil || enc.Source != "tokenize" || len(enc.IDs) == 0 {
		t.Fatalf("source %q, %d ids, reason %q, %v; want tokenize", enc.Source, len(enc.IDs), enc.Reason, err)
	}
}
