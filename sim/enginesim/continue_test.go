package enginesim_test

import (
	"fmt"
	"strings"
	"testing"
)

// whole is an answer with its ids.
type whole struct {
	prompt, ids  []uint32
	text, finish string
}

func numbers(v any) []uint32 {
	list, _ := v.([]any)
	ids := make([]uint32, 0, len(list))
	for _, n := range list {
		ids = append(ids, uint32(n.(float64)))
	}
	return ids
}

func idList(ids []uint32) string { return strings.Join(strings.Fields(fmt.Sprint(ids)), ",") }

// complete asks for a completion of ids.
func (r *replica) complete(t *testing.T, ids []uint32, more string) whole {
	t.Helper()
	code, body := r.post(t, "/v1/completions", `{"model":"sim","prompt":`+idList(ids)+`,"return_token_ids":true`+more+`}`)
	if code != 200 {
		t.Fatalf("status %d: %s", code, body)
	}
	v := decode(t, body)
	return whole{
		prompt: numbers(at(v, "choices", 0, "prompt_token_ids")), ids: numbers(at(v, "choices", 0, "token_ids")),
		text: at(v, "choices", 0, "text").(string), finish: at(v, "choices", 0, "finish_reason").(string),
	}
}

// Another replica that is given the prompt and the beginning of its answer writes the rest, wherever
// the beginning ends, also inside a character.
func TestAnAnswerGoesOnFromItsIDs(t *testing.T) {
	cfg := fast()
	cfg.MeanAnswer = 24
	first, second := start(t, cfg), start(t, cfg)
	inside := 0
	for n := range 30 {
		code, body := first.post(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"Tell me story number %d, Please."}],"return_token_ids":true}`, n))
		if code != 200 {
			t.Fatalf("status %d: %s", code, body)
		}
		v := decode(t, body)
		all := whole{
			prompt: numbers(at(v, "prompt_token_ids")), ids: numbers(at(v, "choices", 0, "token_ids")),
			text: at(v, "choices", 0, "message", "content").(string), finish: at(v, "choices", 0, "finish_reason").(string),
		}
		if all.finish != "stop" {
			t.Fatalf("the answer ended with %q", all.finish)
		}
		for cut := range all.ids {
			if n > 0 && !strings.ContainsAny(all.text, "éï") {
				break // one plain answer is enough
			}
			rest := second.complete(t, append(all.prompt[:len(all.prompt):len(all.prompt)], all.ids[:cut]...), `,"max_tokens":1000`)
			if idList(rest.ids) != idList(all.ids[cut:]) || rest.finish != all.finish {
				t.Fatalf("after %d ids the answer goes on\n with %v (%s)\n want %v (%s)", cut, rest.ids, rest.finish, all.ids[cut:], all.finish)
			}
			if !strings.HasSuffix(all.text, rest.text) {
				inside++
			}
		}
	}
	if inside == 0 {
		t.Error("no cut was inside a character")
	}
}

func TestAPromptThatIsNobodysAnswerIsAnsweredAsEver(t *testing.T) {
	r := start(t, fast())
	a := r.complete(t, []uint32{65, 66, 67, 300, 2000}, `,"max_tokens":5`)
	b := r.complete(t, []uint32{65, 66, 67, 300, 2000}, `,"max_tokens":5`)
	if a.text != b.text || len(a.ids) != 5 || a.finish != "length" {
		t.Errorf("got %+v and %+v", a, b)
	}
}
