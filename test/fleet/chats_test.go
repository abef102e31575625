package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/test/stack"
)

// user has a conversation, each turn at any router.
type user struct {
	messages []map[string]string
	prompt   int // tokens of the last prompt
	output   int // and of its answer
}

// turn asks the next question, of a given replica if that has a name, and returns how many tokens of the prompt the router
// believed the engine to hold, and how many it held.
func (u *user) turn(t *testing.T, at *stack.Stack, question, replica string) (predicted, cached int) {
	t.Helper()
	u.messages = append(u.messages, map[string]string{"role": "user", "content": question})
	body, err := json.Marshal(map[string]any{"model": "sim", "messages": u.messages, "max_tokens": 20, "ignore_eos": true})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.HTTP+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if replica != "" {
		req.Header.Set("x-kvpilot-pin", replica)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s (%v)", resp.Status, raw, err)
	}
	if err := json.Unmarshal(raw, &out); err != nil || len(out.Choices) != 1 {
		t.Fatalf("%s: %v", raw, err)
	}
	u.messages = append(u.messages, map[string]string{"role": "assistant", "content": out.Choices[0].Message.Content})
	u.prompt, u.output = out.Usage.Prompt, out.Usage.Output
	if predicted, err = strconv.Atoi(resp.Header.Get("x-kvpilot-overlap-tokens")); err != nil {
		t.Fatal(err)
	}
	return predicted, out.Usage.Details.Cached
}

// applied waits until the routers have applied all events that the replicas have published.
func applied(t *testing.T, routers []*stack.Stack, replicas []registry.Spec) {
	t.Helper()
	published := 0.0
	for _, r := range replicas {
		resp, err := http.Get(r.URL + "/sim/state")
		if err != nil {
			t.Fatal(err)
		}
		var state struct {
			Ranks []struct {
				Next float64 `json:"next_event"`
			} `json:"ranks"`
		}
		err = json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		if err != nil || len(state.Ranks) != 1 {
			t.Fatalf("%d ranks, %v", len(state.Ranks), err)
		}
		published += state.Ranks[0].Next
	}
	for i, r := range routers {
		eventually(t, fmt.Sprintf("router %d has applied %v batches of events", i, published), func() bool {
			return metric(t, r, "kvpilot_kvevents_batches_total") >= published
		})
	}
}

// Turns that reach the routers of a fleet at random go where the turn before went, whichever router had it. A router may wait in vain
// for the ids of a prompt on a busy machine; it counts that.
func TestTurnsAtRandomRoutersFindTheirConversation(t *testing.T) {
	stack.Aside(t)
	replicas := []registry.Spec{stack.Publisher(t, "a", fewBatches), stack.Publisher(t, "b", fewBatches)}
	var routers []*stack.Stack
	for i := range 3 {
		o := fleetOptions(fmt.Sprintf("router-%d", i), routers, func(c *config.Config) {
			c.Registry.Replicas = replicas
			// By what ranks hold alone: on a busy machine a booking that ends late is worth more to fast engines.
			c.Chooser.Policy, c.Chooser.Weights = decision.WeightedScorers, map[string]float64{"queue_weight": 0, "kv_weight": 0}
		})
		o.Existing = []string{replicas[0].URL, replicas[1].URL}
		routers = append(routers, stack.Start(t, o))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	linked(t, routers)
	for _, r := range routers {
		eventually(t, "both ranks are exact", func() bool { return metric(t, r, `kvpilot_kvindex_ranks{state="exact"}`) == 2 })
	}
	dice := rand.New(rand.NewPCG(1, 31))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "%c%c ", 'a'+rune(dice.IntN(26)), 'a'+rune(dice.IntN(26)))
		}
		return b.String()
	}
	system := map[string]string{"role": "system", "content": words(900)}
	later, right := 0, 0
	var lost []string
	for range 4 {
		users := make([]*user, 4)
		for i := range users {
			users[i] = &user{messages: []map[string]string{system}}
		}
		for turn := range 5 {
			for i, u := range users {
				held, first := u.prompt+u.output, ""
				if turn == 0 {
					first = string(replicas[i%2].ID) // an idle fleet would send all users to one replica
				}
				at := dice.IntN(len(routers))
				predicted, cached := u.turn(t, routers[at], words(60), first)
				if turn == 0 {
					continue
				}
				later++
				// The last token of an answer has not been computed, and only whole blocks are kept.
				whole := (held - 1) / 16 * 16
				if cached < whole {
					lost = append(lost, fmt.Sprintf("turn %d of user %d at router %d: %d of %d tokens", turn, i, at, cached, whole))
				}
				if predicted == whole {
					right++
				}
				if predicted > cached {
					t.Errorf("turn %d of user %d at router %d: %d tokens predicted, %d held", turn, i, at, predicted, cached)
				}
			}
			applied(t, routers, replicas)
		}
	}
	older := func(outcome string) (n int) {
		for _, r := range routers {
			n += int(metric(t, r, `kvpilot_tokenizer_conversation_older_total{outcome="`+outcome+`"}`))
		}
		return n
	}
	whole, vain := older("whole"), older("late")+older("failed")
	t.Logf("%d turns, %d predicted to the block; %d completed, %d in vain", later, right, whole, vain)
	if len(lost) > vain {
		t.Errorf("turns went where their conversation was not: %v", lost)
	}
	if whole+vain < later/4 {
		t.Errorf("%d of %d turns waited because their router knew an older one only", whole+vain, later)
	}
}
