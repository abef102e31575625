package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvpilot/kvpilot/lab/install"
	"github.com/kvpilot/kvpilot/sim/replay"
)

// trace is the load: the requests, and the player's data beyond a trace's.
type trace struct {
	*replay.Trace // with After, in a closed loop too
	// System is the tokens at the beginning of each prompt that are the system message.
	System int
}

// mooncake is where the public traces are expected.
const mooncake = "../shared/traces"

// openTrace makes or reads a trace of about n calls.
func openTrace(name string, n int, seed uint64) (*trace, error) {
	switch name {
	case "chat":
		return chatTrace(200, 10, seed), nil
	case "agents":
		return agentTrace(1, n, seed), nil
	case "conversation":
		path := filepath.Join(mooncake, "mooncake_conversation_trace.jsonl.gz")
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%w: %w", install.ErrAbsent, err)
		}
		name = path
	}
	if slices.Contains(replay.Generators(), name) {
		t, err := replay.Generate(name, n, seed)
		if err != nil {
			return nil, err
		}
		return plain(t), nil
	}
	t, err := replay.ReadTrace(name)
	if err != nil {
		return nil, err
	}
	return plain(t), nil
}

// plain wraps a trace in which only calls of a closed loop wait for each other.
func plain(t *replay.Trace) *trace {
	w := &trace{Trace: t}
	t.After = make([]int, len(t.Calls))
	for i := range t.Calls {
		w.After[i] = t.Calls[i].Prev
	}
	return w
}

// chatChunk is small, because the prompts of chats are.
const chatChunk = 16

// talk makes prompts that grow turn by turn.
type talk struct {
	dice *rand.Rand
	id   uint64
}

// fresh appends ids for tokens tokens that occur nowhere else.
func (g *talk) fresh(ids []uint64, tokens, chunk int) []uint64 {
	for n := (tokens + chunk - 1) / chunk; n > 0; n-- {
		g.id++
		ids = append(ids, g.id)
	}
	return ids
}

func (g *talk) logNormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.dice.NormFloat64())
}

// tokens draws a length in whole chunks, so that ids and lengths agree.
func (g *talk) tokens(median, sigma float64, low, high, chunk int) int {
	n := min(max(int(g.logNormal(median, sigma)), low), high)
	return (n + chunk - 1) / chunk * chunk
}

// chatTrace is users who talk for some turns each, all at the same time and below one system prompt of
// 3,000 tokens. They begin within the time of a turn; a user comes back at times of their own, on average
// after as long as all users together need for a turn each.
func chatTrace(users, turns int, seed uint64) *trace {
	g := &talk{dice: rand.New(rand.NewPCG(seed, 11))}
	const system = 3008
	const turnTime = 60.0 // seconds; the load scales it
	head := g.fresh(nil, system, chatChunk)
	w := &trace{Trace: &replay.Trace{Name: "chat", Chunk: chatChunk}, System: system}
	type turn struct {
		call replay.Call
		user int
	}
	var list []turn
	for user := range users {
		at := g.dice.Float64() * turnTime
		ids := g.fresh(slices.Clone(head), g.tokens(1500, 0.7, 64, 8000, chatChunk), chatChunk)
		for range turns {
			out := g.tokens(120, 0.5, 32, 600, chatChunk)
			next := g.fresh(slices.Clone(ids), out, chatChunk)
			list = append(list, turn{replay.Call{At: at, In: len(ids) * chatChunk, Out: out, IDs: next, Session: user, Prev: -1}, user})
			ids = g.fresh(next, g.tokens(600, 0.9, 16, 4000, chatChunk), chatChunk)
			at += turnTime * (0.4 + g.logNormal(0.5, 0.6))
		}
	}
	slices.SortStableFunc(list, func(a, b turn) int { return cmp.Compare(a.call.At, b.call.At) })
	before := make([]int, users)
	for i := range before {
		before[i] = -1
	}
	for i, t := range list {
		w.Calls = append(w.Calls, t.call)
		w.After = append(w.After, before[t.user])
		before[t.user] = i
	}
	first := w.Calls[0].At
	for i := range w.Calls {
		w.Calls[i].At -= first
	}
	return w
}

// agentTrace is agents that each work on one session after the other, about n calls in all. A session has 6
// to 20 turns below a common system prompt of 8,000 tokens, and its context grows to 100,000 tokens; a turn
// begins a think time after the answer before it.
func agentTrace(agents, n int, seed uint64) *trace {
	const chunk = 512
	g := &talk{dice: rand.New(rand.NewPCG(seed, 13))}
	head := g.fresh(nil, 16*chunk, chunk)
	w := &trace{Trace: &replay.Trace{Name: "agents", Chunk: chunk, Closed: true}}
	session := 0
	for agent := range agents {
		prev := -1
		for until := (agent + 1) * n / agents; len(w.Calls) < until; session++ {
			ids := g.fresh(slices.Clone(head), g.tokens(12_000, 0.8, 1024, 60_000, chunk), chunk)
			after := -1
			for range min(6+g.dice.IntN(15), until-len(w.Calls)) {
				in, out := len(ids)*chunk, min(max(int(g.logNormal(250, 0.8)), 20), 2000)
				if in > 100_000 {
					break
				}
				at := g.logNormal(3, 0.8)
				if prev < 0 {
					at = g.dice.Float64() * 8 // they do not begin at one moment
				}
				next := g.fresh(slices.Clone(ids), out+g.tokens(2000, 1, 100, 20_000, chunk), chunk)
				w.Calls = append(w.Calls, replay.Call{At: at, In: in, Out: out, IDs: next[:len(ids)+out/chunk], Session: session, Prev: prev})
				w.After = append(w.After, after)
				prev = len(w.Calls) - 1
				after = prev
				ids = next
			}
		}
	}
	return w
}

// opened is a closed loop as if clients did not wait: one call after the other at an even pace.
func (t *trace) opened() *replay.Trace {
	c := *t.Trace
	c.Closed = false
	c.Calls = slices.Clone(c.Calls)
	for i := range c.Calls {
		c.Calls[i].At, c.Calls[i].Prev = float64(i), -1
	}
	return &c
}

// timed is a closed loop with one more, tiny session at the end of so many seconds. Replay takes a trace's own
// rate from the first calls of its sessions, and the first calls of agents come all at the beginning.
func (t *trace) timed(seconds float64) *replay.Trace {
	c := *t.Trace
	last := t.Calls[len(t.Calls)-1]
	c.Calls = append(slices.Clone(c.Calls), replay.Call{At: seconds, In: 1, Out: 1, IDs: []uint64{1 << 62}, Session: last.Session + 1, Prev: -1})
	c.After = append(slices.Clone(c.After), -1)
	return &c
}

// cycle is the time of a turn of a closed loop without load: thinking, and an answer from a fleet of so many
// times the usual speed.
func (t *trace) cycle(speed float64) float64 {
	sum, n := 0.0, 0.0
	for i := range t.Calls {
		if c := &t.Calls[i]; c.Prev >= 0 {
			sum += c.At + (0.5+0.013*float64(c.Out))/speed
			n++
		}
	}
	return sum / max(n, 1)
}

// cut keeps the first n calls of an open loop.
func (t *trace) cut(n int) *trace {
	if n >= len(t.Calls) {
		return t
	}
	c := *t.Trace
	c.Calls, c.After = c.Calls[:n:n], c.After[:n:n]
	return &trace{Trace: &c, System: t.System}
}

// times gives the calls' times at a rate of the whole trace: times that a coarse clock puts at one moment are spread
// at random until the next. In a closed loop the times are as they are, and the times of calls that wait for another are
// think times.
func (t *trace) times(rate float64, seed uint64) []float64 {
	at := make([]float64, len(t.Calls))
	if t.Closed {
		for i := range at {
			at[i] = t.Calls[i].At
		}
		return at
	}
	dice := rand.New(rand.NewPCG(seed, 1))
	last := max(1e-3, t.Calls[len(t.Calls)-1].At)
	speed := rate / (float64(len(t.Calls)) / last)
	for i := 0; i < len(at); {
		j := i
		for j < len(at) && t.Calls[j].At == t.Calls[i].At {
			j++
		}
		gap := 0.0
		if j < len(at) {
			gap = t.Calls[j].At - t.Calls[i].At
		}
		for k := i; k < j; k++ {
			at[k] = t.Calls[k].At
			if j-i > 1 {
				at[k] += dice.Float64() * gap
			}
			at[k] /= speed
		}
		i = j
	}
	return at
}
