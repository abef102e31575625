package main

import (
	"encoding/json"
	"testing"

	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// rendered are the token ids of a request as the simulated replica counts them.
func rendered(t *testing.T, raw []byte) []uint32 {
	t.Helper()
	var req struct {
		Messages []vocab.Message `json:"messages"`
	}
	if err := json.Unmarshal(raw, &req); err != nil {
		t.Fatal(err)
	}
	out, err := vocab.Render(vocab.Chat{Messages: req.Messages, GenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	return out.IDs
}

func TestPromptsHaveTheLengthOfTheTrace(t *testing.T) {
	chat := chatTrace(5, 4, 1)
	messages := make([][]message, len(chat.Calls))
	for i := range chat.Calls {
		c := &chat.Calls[i]
		var before []message
		var answer []byte
		if b := chat.After[i]; b >= 0 {
			before = messages[b]
			answer = appendText(nil, &replay.Call{Session: 99}, chat.Chunk, 0, chat.Calls[b].Out) // as long as asked for
		}
		messages[i] = chat.prompt(i, before, answer)
		if n := len(rendered(t, body("chat", messages[i], c.Out, true))); n < c.In-2 || n > c.In+2 {
			t.Errorf("turn %d (after %d): %d tokens, the trace says %d", i, chat.After[i], n, c.In)
		}
	}
}

func TestCallsOfATraceShareTheirPrefix(t *testing.T) {
	w := plain(&replay.Trace{Chunk: 512, Calls: []replay.Call{
		{In: 1500, Out: 1, IDs: []uint64{1, 2, 3}, Prev: -1}, {In: 1500, Out: 1, IDs: []uint64{1, 2, 4}, Prev: -1},
	}})
	a := rendered(t, body("chat", w.prompt(0, nil, nil), 1, true))
	b := rendered(t, body("chat", w.prompt(1, nil, nil), 1, true))
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	if len(a) < 1498 || len(a) > 1502 || same < 1024 || same > 1050 {
		t.Errorf("%d tokens, %d of them shared; want 1500 and 1024", len(a), same)
	}
}

// The system message is the same text in all prompts: one that is cut to a prompt's size shares no more than its cut.
func TestAllChatsShareTheSystemMessage(t *testing.T) {
	chat := chatTrace(200, 1, 1)
	var all []uint32
	for i := range chat.Calls {
		ids := rendered(t, body("chat", chat.prompt(i, nil, nil), 1, true))
		if i == 0 {
			all = ids
			continue
		}
		same := 0
		for same < min(len(all), len(ids)) && all[same] == ids[same] {
			same++
		}
		if same < chat.System-aroundSystem {
			t.Fatalf("prompt %d of %d tokens shares %d tokens with the first, not the system message of %d", i, len(ids), same, chat.System)
		}
	}
}
