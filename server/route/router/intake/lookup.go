package intake

import (
	"context"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
)

// Directory says which parts of prompts replicas can load from below their GPUs; *directory.Directory does.
type Directory interface {
	// Asks reports whether a question about the replicas may be asked at all.
	Asks(replicas []*replica.Replica) bool
	// Find returns the answer, in bounded time; nil where there was nothing to ask.
	Find(ctx context.Context, q *directory.Query) *directory.Answer
}

// lookups asks the directory about prompts.
type lookups struct{ directory Directory } // nil: none

// find asks about the request's prompt, where its token ids are known. Images and audio are left out: their ids are the same whatever they show.
func (l *lookups) find(ctx context.Context, rq *Request) {
	if l.directory == nil || rq.Enc == nil || !rq.mayLookUp() || len(rq.Enc.IDs) == 0 || len(rq.Enc.Batch) > 0 || len(rq.Enc.Media) > 0 {
		return
	}
	rq.Directory = l.directory.Find(ctx, &directory.Query{
		Model: rq.Pool.Served, Adapter: rq.Adapter, Salt: rq.Parsed.Salt, IDs: rq.Enc.IDs, Replicas: rq.Pool.Replicas,
		Prompt: named{rq},
	})
}

// named has the names of the blocks of a request's prompt.
type named struct{ *Request }

// Hashes implements directory.Prompt.
func (n named) Hashes(blockSize int) []blockhash.Hash { return n.Enc.Hashes(blockSize, n.Namespace()) }

// mayLookUp reports whether caches may decide where the request goes.
func (rq *Request) mayLookUp() bool {
	return !rq.OnlyIDs && rq.Holder == "" && !rq.Parsed.Unread() && rq.needsHashes()
}
