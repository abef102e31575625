package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// words makes text that repeats beginnings.
func words(dice *rand.Rand, n int) string {
	list := strings.Fields("the router sends each request block tokens prefix queue replica answer turn conversation hash cache model time number word find keep hold more less soon late")
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(list[dice.IntN(len(list))])
	}
	return b.String()
}

// checkBlocks sends many prompts that share beginnings. Each time the router's prediction must be
// the engine's own count of cached tokens, and afterwards every full block of the prompt must be
// found under the key that the router makes from the ids.
func (r *answers) checkBlocks(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var stems []string
	hits, blocks := 0, 0
	for i := range r.prompts {
		prompt := words(dice, 10+dice.IntN(120))
		if len(stems) > 0 && dice.IntN(3) > 0 {
			prompt = stems[dice.IntN(len(stems))] + " " + words(dice, dice.IntN(30))
		}
		if len(prompt) < 2500 {
			stems = append(stems, prompt)
		}
		id := fmt.Sprintf("e2e-block-%d", i)
		a, err := post(ctx, r.router.url()+"/v1/completions", object{"model": "tiny", "prompt": prompt, "max_tokens": 1 + dice.IntN(4), "temperature": 0, "return_token_ids": true}, "X-Request-Id", id)
		if err != nil {
			return "", err
		}
		ids := a.ids("choices", 0, "prompt_token_ids")
		predicted, err := strconv.Atoi(a.header.Get("X-Kvpilot-Overlap-Tokens"))
		if err != nil {
			return "", fmt.Errorf("prompt %d: no prediction in the answer's header: %w", i, err)
		}
		want := min(predicted, (len(ids)-1)/blockSize*blockSize)
		if got := a.cached(); got != want {
			return "", fmt.Errorf("prompt %d of %d tokens on %s: the router saw %d cached tokens (so %d by the last-token rule), the engine %d", i, len(ids), a.header.Get("X-Kvpilot-Replica"), predicted, want, got)
		}
		if a.cached() > 0 {
			hits++
		}
		n, err := r.router.holds(ctx, a.header.Get("X-Kvpilot-Replica"), ids, "", "")
		if err != nil {
			return "", fmt.Errorf("prompt %d: %w", i, err)
		}
		blocks += n
	}
	return fmt.Sprintf("%d prompts, %d with a hit: predicted = actual each time; %d block keys from ids found among those from events", r.prompts, hits, blocks), nil
}

// holds waits until the index says that the replica holds every full block of ids, and counts them.
func (p *routerProcess) holds(ctx context.Context, id string, ids []uint32, adapter, salt string) (int, error) {
	want := len(ids) / blockSize * blockSize
	got := uint32(0)
	ids = append(slices.Clone(ids), 0) // the block of a prompt's last token would not count: it is computed again
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		resp, err := p.api.Routing().ScoreOverlap(ctx, &kvpilotv1.ScoreOverlapRequest{
			Model: "tiny", Adapter: adapter, CacheSalt: salt,
			Prompt: &kvpilotv1.ScoreOverlapRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}},
		})
		if err != nil {
			return 0, err
		}
		for _, rank := range resp.GetRanks() {
			if rank.GetReplicaId() == id {
				got = rank.GetOverlap().GetGpuTokens()
			}
		}
		if int(got) == want {
			return want / blockSize, nil
		}
	}
	return 0, fmt.Errorf("%s holds %d of %d tokens by the index, 5 s after it computed them", id, got, want)
}

// checkConversation plays a conversation: it must return to its replica, and hit more each turn.
func (r *answers) checkConversation(ctx context.Context) (string, error) {
	dice := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	messages := []object{{"role": "system", "content": words(dice, 80)}}
	home, last := "", -1
	var counts []string
	for turn := range 6 {
		messages = append(messages, object{"role": "user", "content": words(dice, 30)})
		a, err := post(ctx, r.router.url()+"/v1/chat/completions", object{"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0})
		if err != nil {
			return "", err
		}
		at := a.header.Get("X-Kvpilot-Replica")
		if turn > 0 && at != home {
			return "", fmt.Errorf("turn %d went to %s, the conversation's blocks are on %s", turn, at, home)
		}
		if a.cached() <= last {
			return "", fmt.Errorf("turn %d hit %d tokens, the one before %d", turn, a.cached(), last)
		}
		home, last = at, a.cached()
		counts = append(counts, strconv.Itoa(last))
		answer, _ := a.at("choices", 0, "message", "content").(string)
		messages = append(messages, object{"role": "assistant", "content": answer})
	}
	return "six turns on " + home + ", cached tokens " + strings.Join(counts, ", "), nil
}

// checkSalt: a salt separates equal prompts, in the engine and in the index.
func (r *answers) checkSalt(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano()))), 120)
	var cached []int
	for _, salt := range []string{"", "red", "red"} {
		body := object{"model": "tiny", "prompt": prompt, "max_tokens": 1, "return_token_ids": true}
		if salt != "" {
			body["cache_salt"] = salt
		}
		a, err := post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", r.engines[0].id)
		if err != nil {
			return "", err
		}
		cached = append(cached, a.cached())
		if _, err := r.router.holds(ctx, r.engines[0].id, a.ids("choices", 0, "prompt_token_ids"), "", salt); err != nil && r.hasRender() {
			return "", fmt.Errorf("salt %q: %w", salt, err)
		}
	}
	if cached[0] != 0 || cached[1] != 0 || cached[2] == 0 {
		return "", fmt.Errorf("cached tokens without, with and again with a salt: %v", cached)
	}
	detail := fmt.Sprintf("cached tokens without, with and again with the salt: %v", cached)
	if !r.hasRender() {
		detail += "; events of this version do not carry salts, so the index cannot distinguish them"
	}
	return detail, nil
}

// checkAdapter: the adapter is a model of its own, with blocks of its own.
func (r *answers) checkAdapter(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(5, uint64(time.Now().UnixNano()))), 120)
	texts := map[string]string{}
	for _, model := range []string{"tiny", "adapter", "adapter"} {
		a, err := post(ctx, r.router.url()+"/v1/completions", object{"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "return_token_ids": true}, "X-Kvpilot-Pin", r.engines[0].id)
		if err != nil {
			return "", err
		}
		text, _ := a.at("choices", 0, "text").(string)
		if before, again := texts[model]; again {
			if a.cached() == 0 || text != before {
				return "", fmt.Errorf("the adapter's second answer: %d cached tokens, %q, first %q", a.cached(), text, before)
			}
		} else if a.cached() != 0 {
			return "", fmt.Errorf("the first prompt for %s hit %d tokens of another model", model, a.cached())
		}
		texts[model] = text
		if model == "adapter" && r.atLeast(14) {
			if _, err := r.router.holds(ctx, r.engines[0].id, a.ids("choices", 0, "prompt_token_ids"), "adapter", ""); err != nil {
				return "", err
			}
		}
	}
	if texts["tiny"] == texts["adapter"] {
		return "", fmt.Errorf("model and adapter answer alike: %q", texts["tiny"])
	}
	return "answers and blocks of model and adapter are apart", nil
}

// checkReset: the engine forgets, and so does the index.
func (r *answers) checkReset(ctx context.Context) (string, error) {
	prompt := words(rand.New(rand.NewPCG(9, uint64(time.Now().UnixNano()))), 120)
	body := object{"model": "tiny", "prompt": prompt, "max_tokens": 1, "return_token_ids": true}
	a, err := post(ctx, r.router.url()+"/v1/completions", body, "X-Kvpilot-Pin", r.engines[0].id)
	if err != nil {
		return "", err
	}
	ids := a.ids("choices", 0, "prompt_token_ids")
	if _, err := r.router.holds(ctx, r.engines[0].id, ids, "", ""); err != nil {
		return "", err
	}
	if code, text, err := call(ctx, "POST", r.engines[0].url()+"/reset_prefix_cache", nil); err != nil || code != 200 {
		return "", fmt.Errorf("reset: %d %s %w", code, text, err)
	}
	// The engine announces the reset with its next step.
	if _, err := post(ctx, r.engines[0].url()+"/v1/completions", object{"model": "tiny", "prompt": "x", "max_tokens": 1}); err != nil {
		return "", err
	}
	if _, err := r.router.holds(ctx, r.engines[0].id, nil, "", ""); err != nil {
		return "", err
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := r.router.api.Routing().ScoreOverlap(ctx, &kvpilotv1.ScoreOverlapRequest{Model: "tiny", Prompt: &kvpilotv1.ScoreOverlapRequest_TokenIds{TokenIds: &kvpilotv1.TokenIds{Ids: ids}}})
		if err != nil {
			return "", err
		}
		left := uint32(0)
		for _, rank := range resp.GetRanks() {
			if rank.GetReplicaId() == r.engines[0].id {
				left = rank.GetOverlap().GetGpuTokens()
			}
		}
		if left == 0 {
			return "the index forgot the replica's blocks", nil
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("5 s after the reset the index still holds %d tokens", left)
		}
	}
}
