package doctor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
)

// lookedUp is the length of the prompt about which the directory is asked, in tokens.
const lookedUp = 4096

// checkDirectory asks the directory about a random prompt for each pool.
func checkDirectory(ctx context.Context, in scope) []Finding {
	c := in.conf.Directory
	if c.Kind == "" {
		return []Finding{ok("", "no directory is asked (directory.kind is empty)")}
	}
	working, stop := context.WithCancel(ctx)
	asked := directory.New(c, directory.Params{Blocks: in.observer.Index})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = asked.Run(working) // it ends with its context
	}()
	defer func() {
		stop()
		<-ended
	}()
	names, of := pools(in.left(), func(r *replica.Replica) []replica.Model { return in.now(r).Models })
	var found []Finding
	for _, name := range names {
		found = append(found, (&catalogue{in, c, asked, name}).judge(ctx, of[name])...)
	}
	return found
}

// catalogue is the directory of one pool.
type catalogue struct {
	scope
	directory.Config
	asked *directory.Directory
	model string
}

func (c *catalogue) judge(ctx context.Context, pool []*replica.Replica) []Finding {
	var named []*replica.Replica
	var sizes []int
	for _, r := range pool {
		r = c.now(r)
		if r.Labels[replica.LabelInstance] == "" {
			continue
		}
		if named = append(named, r); r.BlockSize > 0 && !slices.Contains(sizes, r.BlockSize) {
			sizes = append(sizes, r.BlockSize)
		}
	}
	if len(named) == 0 {
		return fault(Warn, c.model, "replicas that the directory knows", "no replica of the pool has the label "+replica.LabelInstance+": the directory is never asked",
			"give each replica the label "+replica.LabelInstance+" with its name in the directory, or set directory.kind to nothing")
	}
	slices.Sort(sizes)
	if len(sizes) > 1 {
		return fault(Fail, c.model, "one block size in a pool", fmt.Sprintf("block sizes of %v tokens", sizes), "start the engines of a model with the same --block-size: the directory is asked with one")
	}
	if c.Kind == directory.LMCache && len(sizes) == 1 && c.ChunkTokens%sizes[0] != 0 {
		return fault(Fail, c.model, fmt.Sprintf("chunks of whole blocks of %d tokens, as the engines have them", sizes[0]), fmt.Sprintf("directory.chunk_tokens: %d", c.ChunkTokens),
			"set directory.chunk_tokens to the chunk_size of LMCache's servers")
	}
	q := &directory.Query{Model: c.model, IDs: make([]uint32, lookedUp), Replicas: named}
	for i := range q.IDs {
		q.IDs[i] = rand.Uint32N(30_000)
	}
	return c.judged(c.ask(ctx, q), len(named))
}

// ask asks twice, because the first time includes opening the connection. It returns the first failure.
func (c *catalogue) ask(ctx context.Context, q *directory.Query) (e directory.Examination) {
	bounded, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for range 2 {
		if e = c.asked.Examine(bounded, q); e.Err != nil || !e.Asked {
			break
		}
	}
	return e
}

// judged says how the directory has answered.
func (c *catalogue) judged(e directory.Examination, replicas int) []Finding {
	service := map[string]string{directory.LMCache: "LMCache's coordinator", directory.Mooncake: "Mooncake's conductor"}[c.Kind] + " at " + c.URL
	switch {
	case !e.Asked && e.BlockSize == 0:
		return fault(Warn, c.model, "a known block size of the pool", "no replica says its block size, which the question needs", "let the router read the engines' /metrics, or set block_size of the replicas")
	case !e.Asked:
		return fault(Fail, c.model, "a question that "+service+" can answer", fmt.Sprintf("none about a prompt of %d tokens", lookedUp), "lower directory.chunk_tokens")
	case e.Result == directory.Wrong:
		return fault(Fail, c.model, "an answer of "+service+" with blocks of the expected size", oneLine(e.Err),
			"set directory.chunk_tokens and directory.world_size as LMCache's servers have them, and directory.kind to the kind of the service")
	case e.Result == directory.Refused:
		return fault(Fail, c.model, "an answer of "+service, oneLine(e.Err), "correct directory.url, which has no path, and directory.kind")
	case e.Err != nil:
		return fault(Fail, c.model, "an answer of "+service, oneLine(e.Err), "start the service, correct directory.url, and let firewalls pass it: every choice is made without it")
	case e.Took > e.Budget:
		return fault(Warn, c.model, fmt.Sprintf("an answer about %d tokens within %v, as long as a choice waits", lookedUp, e.Budget), fmt.Sprintf("%v", e.Took.Round(100*time.Microsecond)),
			"raise directory.budget or directory.token_budget if loads gain more than that, or run the service nearer to the router")
	}
	return []Finding{ok(c.model, "%s answers about %d tokens in %v; %d replicas have the label %s", service, lookedUp, e.Took.Round(100*time.Microsecond), replicas, replica.LabelInstance)}
}
