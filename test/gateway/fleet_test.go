package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/sim/enginesim"
	"github.com/kvpilot/kvpilot/test/stack"
)

// pickers starts n endpoint pickers of one fleet before three new replicas.
func pickers(t *testing.T, n int) []*stack.Stack {
	t.Helper()
	slower := func(c *enginesim.Config) { c.Core.Timing.Speed = 20 }
	replicas := []registry.Spec{stack.Publisher(t, "a", slower), stack.Publisher(t, "b", slower), stack.Publisher(t, "c", slower)}
	urls := []string{replicas[0].URL, replicas[1].URL, replicas[2].URL}
	var all []*stack.Stack
	for i := range n {
		all = append(all, stack.Start(t, stack.Options{Existing: urls, Configure: configure(func(c *config.Config) {
			c.Registry.Replicas = replicas
			// By what ranks hold alone: on a busy machine a booking that ends late is worth more to fast engines.
			c.Chooser.Policy, c.Chooser.Weights = decision.WeightedScorers, map[string]float64{"queue_weight": 0, "kv_weight": 0}
			if n > 1 {
				f := &c.Fleet
				f.Name, f.Listen, f.RPCListen, f.Key = fmt.Sprintf("picker-%d", i), "127.0.0.1:0", "127.0.0.1:0", secret.New("the key of the fleet under test")
				f.Patience = 5 * time.Second // a busy machine is no silent router
				for _, other := range all {
					f.Join = append(f.Join, other.Gossip)
				}
			}
		})}))
	}
	for _, s := range all {
		eventually(t, "all ranks are exact", func() bool { return metric(t, s, "kvpilot_kvindex_ranks", `state="exact"`) == 3 })
		for _, half := range []string{"decider", "frontend"} {
			eventually(t, "the pickers are linked", func() bool {
				return metric(t, s, "kvpilot_peers_links", `half="`+half+`"`, `state="up"`) == float64(n-1)
			})
		}
	}
	return all
}

// talk is a conversation.
type talk struct{ messages []map[string]string }

// service is a Service of Kubernetes before the pickers, with the gateway's connections to them: calls go to any of them.
type service struct {
	gateways []*gateway
	mu       sync.Mutex
	dice     *rand.Rand // guarded by mu
}

func (s *service) any() *gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gateways[s.dice.IntN(len(s.gateways))]
}

// cachedShare plays the conversations of four frontends, which are open at once, and returns the share of the prompts' tokens that the
// engines had.
func cachedShare(t *testing.T, all []*stack.Stack) float64 {
	t.Helper()
	front := &service{dice: rand.New(rand.NewPCG(5, 6))}
	for _, s := range all {
		front.gateways = append(front.gateways, dial(t, s.EPP, false, dialect{request: duplex, response: duplex, subset: "list", piece: 100}))
	}
	var mu sync.Mutex
	prompts, cached := 0, 0
	var frontends sync.WaitGroup
	for f := range 4 {
		frontends.Go(func() {
			dice := rand.New(rand.NewPCG(1, uint64(f)))
			words := func(n int) string {
				var b strings.Builder
				for range n {
					fmt.Fprintf(&b, "%c%c ", 'a'+rune(dice.IntN(26)), 'a'+rune(dice.IntN(26)))
				}
				return b.String()
			}
			system := words(800)
			talks := make([]talk, 5)
			for i := range talks {
				talks[i].messages = []map[string]string{{"role": "system", "content": system + words(200)}}
			}
			for turn := range 8 {
				for i := range talks {
					var allowed []string
					if turn == 0 { // an idle fleet would send all of them to one replica
						allowed = []string{endpoint(all[0].Replicas[(f+i)%len(all[0].Replicas)])}
					}
					p, c, err := talks[i].turn(t.Context(), front.any(), words(80), allowed)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					prompts, cached = prompts+p, cached+c
					mu.Unlock()
				}
			}
		})
	}
	frontends.Wait()
	for _, s := range all {
		settled(t, s)
	}
	return float64(cached) / float64(max(prompts, 1))
}

// turn sends the next question, to one of the allowed endpoints if there are any, and returns how many tokens the prompt has, and how many of them the engine had.
func (k *talk) turn(ctx context.Context, g *gateway, question string, allowed []string) (prompt, cached int, err error) {
	k.messages = append(k.messages, map[string]string{"role": "user", "content": question})
	body, err := json.Marshal(map[string]any{"model": "sim", "messages": k.messages, "max_tokens": 20, "ignore_eos": true})
	if err != nil {
		return 0, 0, err
	}
	out, err := g.do(ctx, sent{path: "/v1/chat/completions", body: string(body), allowed: allowed})
	if err != nil {
		return 0, 0, err
	}
	var answer struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(out.body), &answer); err != nil || len(answer.Choices) != 1 {
		return 0, 0, fmt.Errorf("%d %s: %w", out.status, out.body, err)
	}
	k.messages = append(k.messages, map[string]string{"role": "assistant", "content": answer.Choices[0].Message.Content})
	return answer.Usage.Prompt, answer.Usage.Details.Cached, nil
}

// Gateways spread the requests of a conversation over all pickers: two of them find what one finds.
func TestTwoPickersFindWhatOneFinds(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it waits for a fleet that exchanges what it knows")
	}
	t.Parallel()
	one, two := cachedShare(t, pickers(t, 1)), cachedShare(t, pickers(t, 2))
	t.Logf("cached share %.2f %% with one picker, %.2f %% with two", 100*one, 100*two)
	if one < 0.5 {
		t.Errorf("one picker finds %.3f of the prompts' tokens: the trace shows nothing", one)
	}
	if two < one-0.01 {
		t.Errorf("two pickers find %.2f %% of the prompts' tokens, one finds %.2f %%", 100*two, 100*one)
	}
}
