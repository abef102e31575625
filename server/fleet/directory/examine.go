package directory

import (
	"context"
	"time"
)

// Examination is the result of a question for which no choice waits.
type Examination struct {
	// Asked is false where the service cannot be asked about the prompt. Result is the result of the lookup, and Err the reason of one that failed.
	Asked  bool
	Result string
	Err    error
	// Took is the time of the lookup, Budget the time for which a choice would have waited, and BlockSize the block size of the pool's replicas in
	// tokens, 0 where it is not known.
	Took, Budget time.Duration
	BlockSize    int
}

// Examine asks the service about a prompt until ctx ends, whether or not lookups have failed before. The settings must have a kind.
func (d *Directory) Examine(ctx context.Context, q *Query) (e Examination) {
	set, to := d.set.Load(), instancesOf(q.Replicas)
	e.Budget, e.BlockSize = set.wait(len(q.IDs)), to.blockSize
	path, body, ok := set.question(q, to)
	if !ok {
		return e
	}
	began := time.Now()
	e.Asked, e.Err = true, d.exchange(ctx, set, path, body, q, to)
	e.Took, e.Result = time.Since(began), resultOf(e.Err, to)
	return e
}
