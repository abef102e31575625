package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Generators lists the names that Generate knows.
func Generators() []string {
	return []string{"conv", "chats", "hotdoc", "onedoc", "agent", "agentx", "steps", "builds", "reviews", "synth", "rag", "mixed", "bursts", "decode", "reasoning", "fork", "adapters"}
}

// Generate makes a trace of about n calls: conv, many-turn conversations of 12k tokens as in
// Mooncake's trace; chats, ten turns each of users below one system prompt of 3k tokens; hotdoc, questions about 300 documents of 20k tokens of which few are hot;
// agent, closed-loop sessions that grow to more than 100k tokens; agentx, coding agents with subagents and forks, in the shape of AgentX; steps, agents of 20 calls of equal growth; builds, agents whose gaps have long tails; reviews, agents that
// start subagents with their whole contexts late; synth, short prompts on a few
// shared system prompts, and long ones without any; rag, short questions about documents of very different length; mixed,
// chats, fresh prompts of 20k tokens and answers of thousands of tokens; bursts, conv whose sessions begin in bursts; decode, fresh prompts of 3k tokens with answers of 800; reasoning, short fresh prompts with answers of 6k;
// adapters, chats of 64 LoRA adapters with a Zipf law; fork, agents that start 43 subagents at once, each with the whole context of its agent.
func Generate(name string, n int, seed uint64) (*Trace, error) {
	g := &generator{dice: rand.New(rand.NewPCG(seed, 7)), trace: &Trace{Name: name, Chunk: chunkTokens}}
	switch name {
	case "conv":
		g.conv(n, func(int) float64 { return g.dice.ExpFloat64() * 0.8 })
	case "bursts":
		g.conv(n, g.burst)
	case "rag":
		g.rag(n)
	case "mixed":
		g.mixed(n)
	case "chats":
		g.trace.Chunk = 128
		g.chats(n)
	case "hotdoc", "onedoc":
		g.hotdoc(n)
	case "agent":
		g.agent(n)
	case "agentx":
		g.agentx(n)
	case "steps":
		g.steps(n)
	case "builds":
		g.builds(n)
	case "reviews":
		g.reviews(n)
	case "synth":
		g.synth(n)
	case "decode":
		g.decode(n)
	case "reasoning":
		g.reasoning(n)
	case "fork":
		g.fork(n)
	case "adapters":
		g.adapters(n)
	default:
		return nil, fmt.Errorf("no generator %q; there are %v", name, Generators())
	}
	if !g.trace.Closed {
		slices.SortStableFunc(g.trace.Calls, func(a, b Call) int {
			switch {
			case a.At < b.At:
				return -1
			case a.At > b.At:
				return 1
			}
			return 0
		})
		g.trace.Calls = g.trace.Calls[:min(n, len(g.trace.Calls))]
	}
	if name == "chats" {
		for _, before := range turnsBefore(g.trace) {
			g.trace.After = append(g.trace.After, int(before))
		}
	}
	return g.trace, nil
}

type generator struct {
	dice  *rand.Rand
	trace *Trace
	id    uint64
}

// fresh appends ids of chunks that occur nowhere else, for tokens tokens.
func (g *generator) fresh(ids []uint64, tokens int) []uint64 {
	for n := (tokens + g.trace.Chunk - 1) / g.trace.Chunk; n > 0; n-- {
		g.id++
		ids = append(ids, g.id)
	}
	return ids
}

func (g *generator) logNormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.dice.NormFloat64())
}

func (g *generator) clamped(median, sigma float64, low, high int) int {
	return min(max(int(g.logNormal(median, sigma)), low), high)
}

// conv: sessions of a few turns, each prompt the one before with its answer and a new question. gap is the time before
// a session begins.
func (g *generator) conv(n int, gap func(session int) float64) {
	var at float64
	// Some more than needed: those after the n-th in time are cut off, so that the rate is even.
	for session := 0; len(g.trace.Calls) < n+n/2+100; session++ {
		at += gap(session)
		turns := 1 + int(g.dice.ExpFloat64()*1.9)
		ids := g.fresh([]uint64{0}, g.clamped(6000, 1.1, 600, 100_000))
		t := at
		for range turns {
			in, out := len(ids)*chunkTokens-g.dice.IntN(chunkTokens), g.clamped(280, 0.6, 10, 2000)
			g.trace.Calls = append(g.trace.Calls, Call{At: t, In: in, Out: out, IDs: slices.Clone(ids), Session: session, Prev: -1})
			ids = g.fresh(ids, out+g.clamped(1500, 1.2, 50, 20_000))
			if len(ids)*chunkTokens > 120_000 {
				break
			}
			t += 20 + g.logNormal(60, 0.8)
		}
	}
}

// burst lets sessions begin in groups of 24, in half a second each, at the mean rate of conv.
func (g *generator) burst(session int) float64 {
	if session%24 == 0 {
		return g.dice.ExpFloat64() * 0.8 * 24
	}
	return g.dice.ExpFloat64() * 0.02
}

// rag: each call asks a short question about one of 400 documents of 2k to 60k tokens; how often a document is asked
// for falls with its rank.
func (g *generator) rag(n int) {
	system := g.fresh(nil, 512)
	docs := make([][]uint64, 400)
	weights := make([]float64, len(docs))
	var sum float64
	for i := range docs {
		docs[i] = g.fresh(slices.Clone(system), g.clamped(10_000, 0.8, 2000, 60_000))
		sum += 1 / float64(i+1)
		weights[i] = sum
	}
	var at float64
	for i := range n {
		at += g.dice.ExpFloat64() * 0.1
		d, _ := slices.BinarySearch(weights, g.dice.Float64()*sum)
		question := g.clamped(60, 0.6, 10, 400)
		g.trace.Calls = append(g.trace.Calls, Call{
			At: at, In: len(docs[d])*chunkTokens + question, Out: g.clamped(250, 0.7, 10, 1500), IDs: g.fresh(slices.Clone(docs[d]), question), Session: i, Prev: -1,
		})
	}
}

// mixed: of ten calls, seven are turns of chats, one is a fresh prompt of 20k tokens with a short answer, and two are
// short prompts with long answers.
func (g *generator) mixed(n int) {
	g.conv(n*7/10, func(int) float64 { return g.dice.ExpFloat64() * 0.8 })
	end := g.trace.Calls[len(g.trace.Calls)-1].At
	session := g.trace.Calls[len(g.trace.Calls)-1].Session
	for i := range len(g.trace.Calls) * 3 / 7 {
		session++
		c := Call{At: g.dice.Float64() * end, In: g.clamped(20_000, 0.2, 8000, 40_000), Out: g.clamped(120, 0.5, 10, 500), Session: session, Prev: -1}
		if i%3 != 0 {
			c.In, c.Out = g.clamped(400, 0.8, 20, 4000), g.clamped(1500, 0.5, 300, 6000)
		}
		c.IDs = g.fresh(nil, c.In)
		g.trace.Calls = append(g.trace.Calls, c)
	}
}

// chats: so many users that each has ten turns, all at the same time, below one system prompt. A prompt is the one before with its
// answer and a new question, and waits for that answer. Lengths are whole chunks.
func (g *generator) chats(n int) {
	const turns, pause = 10, 60.0
	whole := func(median, sigma float64, low, high int) int {
		return (g.clamped(median, sigma, low, high) + g.trace.Chunk - 1) / g.trace.Chunk * g.trace.Chunk
	}
	head := g.fresh(nil, 3000)
	for session := range (n + turns - 1) / turns {
		at := g.dice.Float64() * pause
		ids := g.fresh(slices.Clone(head), whole(1500, 0.7, 64, 8000))
		for range turns {
			out := whole(120, 0.5, 32, 600)
			next := g.fresh(slices.Clone(ids), out)
			g.trace.Calls = append(g.trace.Calls, Call{At: at, In: len(ids) * g.trace.Chunk, Out: out, IDs: next, Session: session, Prev: -1})
			ids = g.fresh(next, whole(600, 0.9, 16, 4000))
			at += pause * (0.4 + g.logNormal(0.5, 0.6))
		}
	}
}

// hotdoc: each call asks about one of 300 documents (onedoc: all about the same); how often a document is asked for falls with
// the power 1.2 of its rank.
func (g *generator) hotdoc(n int) {
	documents := 300
	if g.trace.Name == "onedoc" {
		documents = 1
	}
	docs := make([][]uint64, documents)
	weights := make([]float64, documents)
	var sum float64
	for i := range docs {
		docs[i] = g.fresh(nil, 20_000)
		sum += math.Pow(float64(i+1), -1.2)
		weights[i] = sum
	}
	var at float64
	for i := range n {
		at += g.dice.ExpFloat64() * 0.1
		d, _ := slices.BinarySearch(weights, g.dice.Float64()*sum)
		question := g.clamped(300, 0.7, 30, 2000)
		ids := g.fresh(slices.Clone(docs[d]), question)
		g.trace.Calls = append(g.trace.Calls, Call{At: at, In: len(docs[d])*chunkTokens + question, Out: g.clamped(200, 0.6, 10, 1000), IDs: ids, Session: i, Prev: -1})
	}
}

// agent: a session's turns follow each other after a short think time, and their context grows.
func (g *generator) agent(n int) {
	g.trace.Closed = true
	system := g.fresh(nil, 8000)
	for session := 0; len(g.trace.Calls) < n; session++ {
		ids := g.fresh(slices.Clone(system), g.clamped(20_000, 0.8, 2000, 80_000))
		prev := -1
		for turn := range 8 + g.dice.IntN(40) {
			in, out := len(ids)*chunkTokens, g.clamped(300, 0.8, 20, 3000)
			if in > 200_000 {
				break
			}
			think := g.logNormal(4, 1)
			if turn == 0 {
				think = float64(session) * 4
			}
			next := g.fresh(slices.Clone(ids), out+g.clamped(3000, 1, 100, 30_000))
			g.trace.Calls = append(g.trace.Calls, Call{
				At: think, In: in, Out: out, IDs: next[:len(ids)+out/chunkTokens], Session: session, Prev: prev,
			})
			prev = len(g.trace.Calls) - 1
			ids = next
		}
	}
}

// synth: 40 shared system prompts of differing length and popularity, with short or long tails.
func (g *generator) synth(n int) {
	var roots [][]uint64
	for range 40 {
		roots = append(roots, g.fresh(nil, g.clamped(8000, 0.8, 1000, 40_000)))
	}
	var at float64
	for i := range n {
		at += g.dice.ExpFloat64() * 0.2
		var ids []uint64
		tail := g.clamped(2000, 1.3, 50, 60_000)
		if g.dice.Float64() < 0.8 {
			ids = slices.Clone(roots[int(math.Pow(g.dice.Float64(), 2.5)*float64(len(roots)))])
		}
		in := len(ids)*chunkTokens + tail
		g.trace.Calls = append(g.trace.Calls, Call{At: at, In: in, Out: g.clamped(250, 0.7, 10, 2000), IDs: g.fresh(ids, tail), Session: i, Prev: -1})
	}
}

// decode: fresh prompts with long answers, as of coding and reasoning.
func (g *generator) decode(n int) {
	var at float64
	for i := range n {
		at += g.dice.ExpFloat64() * 0.1
		in := g.clamped(3000, 0.6, 200, 16_000)
		g.trace.Calls = append(g.trace.Calls, Call{At: at, In: in, Out: g.clamped(800, 0.6, 50, 4000), IDs: g.fresh(nil, in), Session: i, Prev: -1})
	}
}

// reasoning: short fresh prompts with very long answers, which fill the memory of engines.
func (g *generator) reasoning(n int) {
	var at float64
	for i := range n {
		at += g.dice.ExpFloat64()
		in := g.clamped(250, 0.8, 30, 3000)
		g.trace.Calls = append(g.trace.Calls, Call{At: at, In: in, Out: g.clamped(6000, 0.6, 500, 20_000), IDs: g.fresh(nil, in), Session: i, Prev: -1})
	}
}

// branches is how many subagents each agent of fork starts.
const branches = 43

// fork: each agent computes a context and then starts subagents with it, all at once.
func (g *generator) fork(n int) {
	g.trace.Closed = true
	for agent := range max(1, n/(branches+1)) {
		context := g.fresh(nil, g.clamped(40_000, 0.4, 10_000, 100_000))
		root := len(g.trace.Calls)
		session := agent * (branches + 1)
		at, out := g.dice.ExpFloat64()*20, chunkTokens
		if root > 0 {
			at += g.trace.Calls[root-branches-1].At
		}
		context = g.fresh(context, out)
		g.trace.Calls = append(g.trace.Calls, Call{At: at, In: (len(context) - 1) * chunkTokens, Out: out, IDs: context, Session: session, Prev: -1})
		for b := range branches {
			own := g.clamped(800, 0.6, 100, 4000)
			g.trace.Calls = append(g.trace.Calls, Call{
				At: 0.05 + 0.1*g.dice.Float64(), In: len(context)*chunkTokens + own, Out: g.clamped(250, 0.6, 30, 1500),
				IDs: g.fresh(slices.Clone(context), own), Session: session + 1 + b, Prev: root,
			})
		}
	}
}
