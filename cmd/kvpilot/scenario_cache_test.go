package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Founding scenarios about what replicas hold, from the engines' events to the choice.

// overlaps asks the router what each replica holds of a prompt, in tokens.
func (f *fleet) overlaps(body string) map[string]int {
	f.t.Helper()
	question, err := json.Marshal(map[string]any{"model": "sim", "body": map[string]any{"json": []byte(body)}})
	if err != nil {
		f.t.Fatal(err)
	}
	a := f.post("/kvpilot/v1/overlap", string(question))
	var answer struct {
		Ranks []struct {
			ReplicaID string `json:"replica_id"`
			Overlap   struct {
				GPUTokens int `json:"gpu_tokens"`
			} `json:"overlap"`
		} `json:"ranks"`
	}
	if err := json.Unmarshal(a.body, &answer); a.status != http.StatusOK || err != nil {
		f.t.Fatalf("%d %v: %s", a.status, err, a.body)
	}
	held := map[string]int{}
	for _, r := range answer.Ranks {
		held[r.ReplicaID] = r.Overlap.GPUTokens
	}
	return held
}

// decisionOf is what the router remembers of a request that has ended.
func (f *fleet) decisionOf(requestID string) (d struct {
	ReplicaID string `json:"replica_id"`
	Outcome   *struct {
		End                   string `json:"end"`
		PromptTokens          int    `json:"prompt_tokens"`
		OutputTokens          int    `json:"output_tokens"`
		CachedTokens          int    `json:"cached_tokens"`
		PredictedCachedTokens int    `json:"predicted_cached_tokens"`
	} `json:"outcome"`
}) {
	f.t.Helper()
	f.eventually("the request's outcome is known", func() bool {
		f.decisionInto(requestID, &d)
		return d.Outcome != nil
	})
	return d
}

// decisionInto reads the last decision of a request, where it has one.
func (f *fleet) decisionInto(requestID string, d any) {
	f.t.Helper()
	resp, err := http.Get("http://" + f.http + "/kvpilot/v1/requests/" + requestID + "/decisions")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return
	}
	var answer struct{ Decisions []json.RawMessage }
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Decisions) == 0 {
		f.t.Fatalf("%v: %s", err, text)
	}
	if err := json.Unmarshal(answer.Decisions[len(answer.Decisions)-1], d); err != nil {
		f.t.Fatalf("%v: %s", err, text)
	}
}

// askAt has one replica answer, whatever the policy would say.
func (f *fleet) askAt(replica, body string) answer {
	f.t.Helper()
	a := f.post("/v1/chat/completions", body, "X-Kvpilot-Pin", replica)
	cached(f.t, a)
	if at := a.header.Get("X-Kvpilot-Replica"); at != replica {
		f.t.Fatalf("pinned to %s, answered by %s", replica, at)
	}
	return a
}

func TestWhatAReplicaHoldsIsItsOwnAndDecides(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	long, short := conversation("shared", 3, ""), conversation("shared", 1, "")
	f.askAt("r0", short)
	f.askAt("r1", long)
	var held map[string]int
	f.eventually("both hold what they computed", func() bool {
		held = f.overlaps(long)
		return held["r0"] > 0 && held["r1"] > held["r0"]
	})
	for i := range 3 {
		a := f.post("/v1/chat/completions", long)
		cached(t, a)
		if at := a.header.Get("X-Kvpilot-Replica"); at != "r1" {
			t.Errorf("request %d went to %s; the overlaps are %v", i, at, held)
		}
	}
	if other := f.overlaps(conversation("somebody else", 3, "")); other["r0"] != 0 || other["r1"] != 0 {
		t.Errorf("a prompt that nobody sent overlaps by %v", other)
	}
}

func TestAResetTakesTheCacheOfThatReplicaOnly(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	body := conversation("kept", 3, "")
	f.askAt("r0", body)
	f.askAt("r1", body)
	f.eventually("both hold the prompt", func() bool {
		held := f.overlaps(body)
		return held["r0"] > 0 && held["r0"] == held["r1"]
	})
	before := f.overlaps(body)
	if a := postTo(t, f.urls[0]+"/reset_prefix_cache", ""); a.status != http.StatusOK {
		t.Fatalf("the engine answered %d %s", a.status, a.body)
	}
	f.eventually("the index follows the reset", func() bool { return f.overlaps(body)["r0"] == 0 })
	if after := f.overlaps(body); after["r1"] != before["r1"] {
		t.Errorf("the other replica holds %d tokens, before it held %d", after["r1"], before["r1"])
	}
	for i := range 3 {
		a := f.post("/v1/chat/completions", body)
		cached(t, a)
		if at := a.header.Get("X-Kvpilot-Replica"); at != "r1" {
			t.Errorf("request %d went to %s, whose cache was reset", i, at)
		}
	}
}

func TestWhatIsRecordedIsWhatTheEngineCounted(t *testing.T) {
	f := startFleet(t, fleetOptions{replicas: 2})
	for i, more := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
		for turn := 1; turn <= 3; turn += 2 {
			id := fmt.Sprintf("counted-%d-%d", i, turn)
			a := f.post("/v1/chat/completions", conversation(fmt.Sprint("counted", i), turn, more), "X-Request-Id", id)
			if a.status != http.StatusOK || a.err != nil {
				t.Fatalf("%d %v: %s", a.status, a.err, a.body)
			}
			body := string(a.body)
			if more != "" {
				events := a.events()
				body = events[len(events)-2] // the chunk before [DONE]
			}
			var want usage
			if err := json.NewDecoder(strings.NewReader(body)).Decode(&want); err != nil || want.Usage.PromptTokens == 0 {
				t.Fatalf("no usage in %q: %v", body, err)
			}
			o := f.decisionOf(id).Outcome
			if o.End != "END_COMPLETED" || o.PromptTokens != want.Usage.PromptTokens || o.OutputTokens != want.Usage.CompletionTokens || o.CachedTokens != want.Usage.PromptTokensDetails.CachedTokens {
				t.Errorf("%s: recorded %+v, the engine says %+v", id, *o, want.Usage)
			}
			f.settled()
		}
	}
	if left := f.metric("kvpilot_load_blocks") + f.metric("kvpilot_load_prefill_tokens"); left != 0 {
		t.Errorf("%v blocks and tokens are still booked", left)
	}
}
