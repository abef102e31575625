package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
)

const benchBlock = 16

// talk is one growing conversation as its client writes it. Its text is there before it begins, so that no client's work counts.
type talk struct {
	dice     *rand.Rand
	messages []byte // the list's inside, at its last turn
	count    int
	perTurn  int   // bytes of text per turn
	ends     []int // of the messages at each turn
	turns    int   // taken so far
}

func (b tokenizeBench) talk(seed int) *talk {
	k := &talk{dice: rand.New(rand.NewPCG(uint64(seed), 42)), perTurn: b.tokens / b.turns * fakeToken}
	for range b.turns {
		k.write()
		k.ends = append(k.ends, len(k.messages))
	}
	return k
}

// talks are the talks of all clients, the first one's of the seed.
func (b tokenizeBench) talks(seed int) []*talk {
	list := make([]*talk, b.clients)
	for i := range list {
		list[i] = b.talk(seed + i)
	}
	return list
}

func (k *talk) say(role string, size int) {
	if k.count > 0 {
		k.messages = append(k.messages, ',')
	}
	k.count++
	k.messages = fmt.Appendf(k.messages, `{"role":%q,"content":"`, role)
	const letters = "abcdefghijklmnopqrstuvwxyz     "
	for i := range size {
		n := len(letters)
		if i == 0 || i == size-1 {
			n = 26 // hardly a message begins or ends with a space
		}
		k.messages = append(k.messages, letters[k.dice.IntN(n)])
	}
	k.messages = append(k.messages, `"}`...)
}

// turn adds the turn since the last request.
func (k *talk) turn() { k.turns++ }

// write writes the addition of another turn.
func (k *talk) write() {
	if k.count == 0 {
		k.say("system", k.perTurn/3)
		k.say("user", k.perTurn*2/3)
		return
	}
	k.say("assistant", k.perTurn/2)
	k.say("user", k.perTurn/2)
}

func (k *talk) body() []byte {
	messages := k.messages[:k.ends[k.turns-1]]
	b := make([]byte, 0, len(messages)+128)
	b = append(b, `{"model":"`+benchModel+`","stream":true,"max_tokens":256,"messages":[`...)
	return append(append(b, messages...), `],"temperature":0.7}`...)
}

// tokenizeStage is the router's work on a body up to its block hashes.
func tokenizeStage(ctx context.Context, pool *tokenizer.Pool, fleet *fakeFleet, body []byte) (*openai.Request, *tokenizer.Encoding, time.Duration, error) {
	req, err := openai.Read(openai.Params{Route: openai.RouteChat, Body: body})
	if err != nil {
		return nil, nil, 0, err
	}
	req.Prompt.Model = benchModel
	began := time.Now()
	enc, err := pool.Encode(ctx, tokenizer.Request{Prompt: &req.Prompt, Replicas: fleet.replicas, Pool: benchModel})
	if err != nil {
		return req, nil, 0, err
	}
	took := time.Since(began)
	enc.Hashes(benchBlock, blockhash.Namespace{})
	return req, enc, took, nil
}

// routerDefaults are the settings that a router has on this machine.
func routerDefaults() tokenizer.Config {
	c, _ := config.Default().WithinMemory(memlimit.Find(memlimit.Config{}))
	return c.Tokenizer
}

// runPool makes a pool and gives it life until the returned function is called.
func runPool(ctx context.Context, cfg tokenizer.Config) (*tokenizer.Pool, func()) {
	pool := tokenizer.New(cfg, tokenizer.Params{})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = pool.Run(ctx) // ends with ctx, without an error
	}()
	return pool, func() {
		cancel()
		<-done
	}
}

// held is the outcome of holding conversations.
type held struct {
	stages []time.Duration
	early  int
	tokens int
}

func (h *held) mean() time.Duration {
	var sum time.Duration
	for _, d := range h.stages {
		sum += d
	}
	return sum / time.Duration(max(1, len(h.stages)))
}

func (h *held) quantile(q float64) time.Duration {
	return measure.Quantile(slices.Sorted(slices.Values(h.stages)), q)
}

// hold has all clients talk at once.
func (b tokenizeBench) hold(ctx context.Context, cfg tokenizer.Config, fleet *fakeFleet, pause time.Duration) (*held, error) {
	pool, stop := runPool(ctx, cfg)
	defer stop()
	var (
		mu   sync.Mutex
		all  held
		fail error
		wg   sync.WaitGroup
	)
	for _, k := range b.talks(0) {
		wg.Go(func() {
			for range b.turns {
				k.turn()
				runtime.Gosched() // a request's goroutine has waited for its connection: it does not go before goroutines that waited longer
				_, enc, took, err := tokenizeStage(ctx, pool, fleet, k.body())
				enc.Release()
				mu.Lock()
				if err == nil && enc.Source == tokenizer.SourceNone {
					err = fmt.Errorf("no ids: %s", enc.Reason)
				}
				if err != nil {
					fail = err
					mu.Unlock()
					return
				}
				all.stages = append(all.stages, took)
				if enc.Partial {
					all.early++
				}
				all.tokens = max(all.tokens, enc.Tokens)
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	return &all, fail
}

// conversations compares the stage with calling /tokenize in full each turn.
func (b tokenizeBench) conversations(ctx context.Context, r *tokenizeReport) error {
	fleet, err := startFakeFleet(ctx, b.replicas)
	defer fleet.kill()
	if err != nil {
		return err
	}
	plain := routerDefaults()
	plain.CacheBytes, plain.Conversations = 0, false
	full, err := b.hold(ctx, plain, fleet, 0)
	if err != nil {
		return err
	}
	ours, err := b.hold(ctx, routerDefaults(), fleet, 0)
	if err != nil {
		return err
	}
	paused, err := b.hold(ctx, routerDefaults(), fleet, b.pause)
	if err != nil {
		return err
	}
	unloaded := fakeBase + time.Duration(b.tokens/2)*fakePerToken
	r.Tokens = full.tokens
	r.FullMeanMillis, r.StageMeanMillis, r.StageP99Millis = millis(full.mean()), millis(ours.mean()), millis(ours.quantile(0.99))
	r.StageShareOfFull = float64(ours.mean()) / float64(full.mean())
	r.StageShareOfModel = float64(ours.mean()) / float64(unloaded)
	r.ShareWithPause = float64(paused.mean()) / float64(full.mean())
	r.EarlyShare = float64(ours.early) / float64(len(ours.stages))
	return nil
}
