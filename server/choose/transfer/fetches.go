package transfer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Fetches compares the tokens that the requests of a rank were to fetch, from tiers below its GPU and from other engines, with the tokens that its
// engine counts as fetched. It is safe for concurrent use. Make one with NewFetches.
//
// A report shows the sum over many requests, and some of them a moment before or after their first token is seen here. So tokens are due with the report
// after the next one, and the share is the quotient of two sums that fade: the next report has the tokens that one report lacks.
type Fetches struct {
	latest atomic.Int64  // when the last report was made, in nanoseconds
	share  atomic.Uint64 // the bits of a float64
	seen   atomic.Int64
	doubt  atomic.Int64 // until when nothing is expected of the rank, in nanoseconds; 0: it is trusted

	mu                sync.Mutex
	young, due        float64 // tokens that were to be fetched, since the last report and before; guarded by mu
	expected, fetched float64 // faded sums; guarded by mu
	counted, last     uint64  // the engine's count up to which it is settled, and in the last report; guarded by mu
	known             bool    // there was a report; guarded by mu
}

const (
	// leastDue is the number of tokens that are settled together, fetchMemory the share of the sums that a settlement keeps, and priorFetches the
	// tokens by which a rank is trusted at first.
	leastDue     = 2048
	fetchMemory  = 0.75
	priorFetches = 4096
	// leastFetched is the share below which a rank is left out for doubtTime.
	leastFetched = 0.5
	doubtTime    = time.Minute
)

// NewFetches returns the account of a rank without requests.
func NewFetches() *Fetches {
	f := &Fetches{}
	f.trust()
	f.share.Store(math.Float64bits(1))
	return f
}

// trust begins the sums again. The caller holds mu, or has the only reference.
func (f *Fetches) trust() { f.expected, f.fetched = priorFetches, priorFetches }

// Expect notes that a request has had so many tokens to fetch.
func (f *Fetches) Expect(tokens int) {
	if tokens <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.young += float64(tokens)
}

// Share is the share of the expected tokens that the engine has fetched of late, from 0 to 1, and Seen how often it was settled; until Seen is above zero,
// Share is a guess.
func (f *Fetches) Share() float64 { return math.Float64frombits(f.share.Load()) }

// Seen is described at Share.
func (f *Fetches) Seen() int64 { return f.seen.Load() }

// Doubted reports whether the rank has fetched too little of late, so that it should not be counted on at now.
func (f *Fetches) Doubted(now time.Time) bool {
	until := f.doubt.Load()
	return until != 0 && now.UnixNano() < until
}

// Counted takes the engine's report at a moment: its count of fetched tokens since it began. others is set when requests of other senders may be in the
// count. A report that was taken before is skipped.
func (f *Fetches) Counted(total uint64, at time.Time, others bool) {
	if stamp := at.UnixNano(); f.latest.Swap(stamp) == stamp {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	restarted := total < f.last
	f.last = total
	if restarted { // another process, which has done nothing wrong yet
		f.trust()
		f.share.Store(math.Float64bits(1))
		f.doubt.Store(0)
	}
	doubted := f.doubt.Load() != 0
	if doubted && !f.Doubted(at) { // it has another chance
		f.trust()
		f.doubt.Store(0)
	}
	if !f.known || restarted || others || doubted { // requests that are not known here, or were sent before the doubt, are in the count
		f.known, f.counted, f.young, f.due = true, total, 0, 0
		return
	}
	due := f.due
	f.due, f.young = f.due+f.young, 0
	if due < leastDue {
		return
	}
	f.due -= due
	f.expected = fetchMemory*f.expected + due
	f.fetched = fetchMemory*f.fetched + float64(total-f.counted)
	f.counted = total
	share := min(1, f.fetched/f.expected)
	f.share.Store(math.Float64bits(share))
	f.seen.Add(1)
	if share < leastFetched {
		f.doubt.Store(at.Add(doubtTime).UnixNano())
	}
}
