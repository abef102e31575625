package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// A short prompt overtakes the rest of a long one, which then goes on from what was computed.
func TestAShortPromptOvertakesTheRestOfALongOne(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 1, yaml: "chooser: {yield_ranks: 1}\n", engine: func(_ int, c *enginesim.Config) { c.Core.Timing.Speed = 1 }})
	engine := f.engines[0]
	ask := func(first, n int) answer {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint(first + i%20000)
		}
		return f.post("/v1/completions", `{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":2,"prompt":[`+strings.Join(ids, ",")+`]}`)
	}
	long := make(chan answer, 1)
	go func() { long <- ask(1000, 120_000) }() // half a minute of prefill
	f.eventually("the engine has computed some of the long prompt", func() bool { return f.metric("kvpilot_kvindex_blocks") > 300 })
	short := make(chan answer, 1)
	go func() { short <- ask(50, 40) }()
	f.eventually("the long prompt gives way", func() bool { return f.metric("kvpilot_chooser_yields_total") == 1 })
	if a := <-short; a.err != nil || a.status != 200 || len(a.events()) == 0 {
		t.Errorf("the short one got %d, %v", a.status, a.err)
	}
	select {
	case <-long:
		t.Error("the long prompt was answered before the short one")
	default:
	}
	engine.SetSpeed(100)
	a := <-long
	if a.err != nil || a.status != 200 || a.events()[len(a.events())-1] != "[DONE]" {
		t.Fatalf("the long one got %d, %v, %q", a.status, a.err, a.events())
	}
	var last struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(a.events()[len(a.events())-2]), &last); err != nil || last.Usage.PromptTokens != 120_000 {
		t.Errorf("usage %+v, %v", last, err)
	}
	stats := engine.Stats()[0]
	if hits := int(stats.Hits); hits < 300*16 || hits >= 120_000 {
		t.Errorf("%d tokens were found again, want what was computed before and no more", hits)
	}
	f.settled()
}
