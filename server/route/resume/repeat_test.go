package resume_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/internal/compare"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/route/resume"
)

// sampledTwice are the tokens of two choices; an empty one is a part of a character.
var sampledTwice = [2][]string{
	{"Found", " we", "nt", "", "é", " wait", " ev", "en", " as", " \"book\"", ""},
	{"Ought", "", "", "你", " se", "e", "\n", "past", ""},
}

// chunks are the events of an engine that writes both choices with log probabilities, in the order and in the portions that next says: the choice, and how many
// tokens come at once.
func chunks(id string, next func(left [2]int) (choice, tokens int)) (list []string) {
	add := func(choices, more string) {
		list = append(list, fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":7,"model":"m","choices":[%s]%s}`+"\n\n", id, choices, more))
	}
	for i := range sampledTwice {
		add(fmt.Sprintf(`{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, i), "")
	}
	left := [2]int{len(sampledTwice[0]), len(sampledTwice[1])}
	for left != [2]int{} {
		i, n := next(left)
		all := sampledTwice[i]
		at := len(all) - left[i]
		text, probs := "", make([]string, n)
		for k := range n {
			text += all[at+k]
			probs[k] = fmt.Sprintf(`{"token":%q,"logprob":-0.%d,"bytes":[1],"top_logprobs":[]}`, fmt.Sprintf("<%d.%d>", i, at+k), at+k+1)
		}
		end, last := `"finish_reason":null,"token_ids":null`, ""
		if left[i] -= n; left[i] == 0 {
			end, last = `"finish_reason":"stop","stop_reason":null,"token_ids":null,"weight_versions":null`, `,"system_fingerprint":"f"`
		}
		add(fmt.Sprintf(`{"index":%d,"delta":{"content":%q},"logprobs":{"content":[%s]},%s}`, i, text, strings.Join(probs, ","), end), last+`,"kv_transfer_params":null`)
	}
	add("", `,"usage":{"prompt_tokens":5,"total_tokens":25,"completion_tokens":20}`)
	return append(list, "data: [DONE]\n\n")
}

// atRandom is an order in which several tokens may come at once.
func atRandom(dice *rand.Rand) func([2]int) (int, int) {
	return func(left [2]int) (choice, tokens int) {
		choice = dice.IntN(2)
		if left[choice] == 0 {
			choice = 1 - choice
		}
		return choice, 1 + dice.IntN(min(5, left[choice]))
	}
}

// repeated returns the client's part of another engine's repetition.
func repeated(t *testing.T, f *resume.Follower, list []string) (out string) {
	t.Helper()
	f.Repeat()
	for _, e := range list {
		b, err := f.Feed([]byte(e))
		if out += string(b); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%v behind %s", err, out)
		}
	}
	return out
}

// A client that carries its stream may have any number of the events of a repetition, which another engine has cut in another way: it is continued once more.
func TestARepetitionIsContinuedBehindEachOfItsEvents(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 5))
	want := strings.Join(chunks("one", atRandom(dice)), "")
	for range 40 {
		p := resume.Params{API: prompt.APIChat, Repeated: 2, Usage: true}
		first := chunks("one", atRandom(dice))
		at := 1 + dice.IntN(len(first)-2)
		f := resume.New(p)
		has := ""
		for _, e := range first[:at] {
			has += fed(t, f, e)
		}
		second := strings.SplitAfter(repeated(t, f, chunks("two", atRandom(dice))), "\n\n")
		for n := range second {
			p.Received = []byte(has + strings.Join(second[:n], ""))
			again := resume.New(p)
			if again.Done() {
				continue
			}
			if end, ok := again.Ending(); ok {
				if got := string(p.Received) + string(end); compare.Content(got) != compare.Content(want) || !compare.IsWhole(got) {
					t.Fatalf("the router ended it:\n%s", got)
				}
				continue
			}
			if _, ok := again.Point(); !ok {
				t.Fatalf("no point behind %s", p.Received)
			}
			got := string(p.Received) + repeated(t, again, chunks("three", atRandom(dice)))
			if compare.Content(got) != compare.Content(want) || !compare.IsWhole(got) {
				t.Fatalf("behind %d events of the first engine and %d of the second, the client has\n%s\nwant\n%s", at, n, compare.Content(got), compare.Content(want))
			}
		}
	}
}

// A repetition in the same events gives the client the engine's own events, byte for byte.
func TestARepetitionHasTheBytesOfTheFirstAnswer(t *testing.T) {
	for seed := range uint64(20) {
		inOrder := func() func([2]int) (int, int) { return atRandom(rand.New(rand.NewPCG(seed, 1))) }
		want := chunks("one", inOrder())
		for at := 1; at < len(want); at++ {
			f := resume.New(resume.Params{API: prompt.APIChat, Repeated: 2, Usage: true})
			got := ""
			for _, e := range want[:at] {
				got += fed(t, f, e)
			}
			if end, ok := f.Ending(); ok {
				got += string(end)
			} else {
				got += repeated(t, f, chunks("two", inOrder()))
			}
			if got != strings.Join(want, "") {
				one, other := compare.Difference(got, strings.Join(want, ""))
				t.Fatalf("cut after %d events, the client has\n%s\nwant\n%s", at, one, other)
			}
		}
	}
}
