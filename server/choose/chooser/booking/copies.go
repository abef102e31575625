package booking

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/chooser/follow"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// copying is a copy under way with its bookings.
type copying struct {
	one          *transfer.Copy
	booker       *Booker
	lane         *transfer.Lane
	source, goal *load.Reservation // nil: not booked
	prefix       []blockhash.Hash  // nil: not known here
	moved        int
	// rest is the predicted time in seconds from the end of the transfer until it is known. counts is set when the time of the read shows the
	// transfer's.
	rest   float64
	counts bool
	sent   atomic.Int64
	over   sync.Once
}

// copySuffix distinguishes the reservations of a copy from the request's.
const copySuffix = "+copy"

// StartCopy begins the copy that s found, unless it is under way or its source is not free yet. It reports whether the request may wait for it, and
// returns the copy if it is under way.
func (b *Booker) StartCopy(s *evaluate.Evaluation, req *ask.Request, now time.Time) (*transfer.Copy, bool) {
	p := &s.Pull
	switch {
	case p.Later:
		return nil, true
	case p.From < 0:
		return b.Copies.To(s.Decision.Candidates[p.To].Slot), true
	}
	d := &s.Decision
	from, to := &d.Candidates[p.From], &d.Candidates[p.To]
	hashes, size := req.HashesFor(from), int(from.BlockSize)
	blocks := int(p.Held) / size
	if blocks == 0 || blocks > len(hashes) {
		return nil, false
	}
	begun := b.Clock.Since(now)
	c := &copying{
		one: &transfer.Copy{
			From: from.Slot, To: to.Slot, Last: hashes[blocks-1], Blocks: blocks, BlockSize: size, Begun: begun, Due: begun + int64(clock.Duration(p.Arrives)),
		},
		booker: b, lane: s.Pool.Pairs.Lane(p.From, p.To), moved: int(p.Moved), rest: to.StepTime + to.Overhead, counts: to.Backlog+to.Planned < p.Transfer/4,
		prefix: hashes[:blocks],
	}
	if !b.Copies.BeginSince(c.one, s.Ends) {
		return nil, b.Copies.Ends() != s.Ends // then it is looked at again, because the requests that wait are visited when a copy has ended
	}
	c.reserve(load.Request{
		ID: req.ID + copySuffix + strconv.FormatUint(b.copies.Add(1), 10), Tenant: req.Tenant, PrefillTokens: 1, PrefillTime: clock.Duration(from.TokenTime), Hashes: c.prefix,
	})
	req.Copier.Copy(&ask.Prefix{
		From: ask.Place{Replica: s.Owner(p.From), Rank: int(from.Rank), Slot: from.Slot}, To: ask.Place{Replica: s.Owner(p.To), Rank: int(to.Rank), Slot: to.Slot},
		Tokens: c.one.Tokens(), Moved: c.moved, BlockSize: size, Last: c.one.Last, Predicted: clock.Duration(p.Arrives), CopyReports: c,
	})
	return c.one, true
}

// reserve books both ranks of the copy as like says. Where a rank cannot be booked, the copy is only not counted there.
func (c *copying) reserve(like load.Request) {
	id, book := like.ID, c.booker.Book
	like.PromptTokens, like.BlockSize, like.ExpectedTokens = c.one.Tokens()+1, c.one.BlockSize, 1
	like.Unstreamed = true // one that hangs is no evidence against the rank
	like.ID, like.Slot = id+"s", c.one.From
	c.source, _ = book.Reserve(like)
	like.ID, like.Slot, like.PrefillTokens, like.PrefillTime = id+"t", c.one.To, 0, 0
	c.goal, _ = book.Reserve(like)
}

// Copying is a copy that another router has begun.
type Copying struct {
	// ID is its name, which no other copy has.
	ID        string
	From, To  replica.Slot
	Last      blockhash.Hash
	Blocks    int
	BlockSize int
	// Left is the predicted time until it ends.
	Left time.Duration
}

// AdoptCopy notes a copy that another router has begun. The result, nil where the copy is not counted here, must be ended like the copy.
func (b *Booker) AdoptCopy(of Copying) ask.CopyReports {
	now := b.Clock.Since(b.Clock.Now())
	c := &copying{booker: b, one: &transfer.Copy{From: of.From, To: of.To, Last: of.Last, Blocks: of.Blocks, BlockSize: of.BlockSize, Begun: now, Due: now + int64(of.Left)}}
	if !b.Copies.Begin(c.one) {
		return nil
	}
	c.reserve(load.Request{ID: of.ID + copySuffix})
	return c
}

// Sent implements ask.CopyReports: the source has answered, and the target reads.
func (c *copying) Sent() {
	if c.source != nil {
		c.source.PrefillDone()
	}
	c.one.Moved()
	c.booker.Waiters.Landed(c.one.From)
	c.sent.Store(c.booker.Clock.Since(c.booker.Clock.Now()))
	c.booker.ahead.look()
}

// Ended implements ask.CopyReports.
func (c *copying) Ended(how ask.CopyEnd) {
	c.over.Do(func() {
		b := c.booker
		for _, r := range []*load.Reservation{c.source, c.goal} {
			if r != nil {
				r.Release()
			}
		}
		now := b.Clock.Since(b.Clock.Now())
		switch sent := c.sent.Load(); how {
		case ask.Copied:
			b.Index.Predict(c.one.To, c.prefix, b.Clock.Time(now).Add(beliefSlack)) // its events may come later
			fetches := true
			if rk := b.Ranks.At(c.one.To); rk != nil {
				rk.Fetches.Expect(c.moved)
				fetches = rk.Fetches.Share() >= follow.LeastRead
			}
			if sent != 0 && c.counts && fetches {
				took := time.Duration(now - sent).Seconds()
				c.lane.Learn(c.moved, max(took-c.rest, took/4))
			}
		case ask.SourceFailed:
			b.Copies.Rest(c.one.From, now)
		case ask.TargetFailed, ask.CopyGivenUp: // in no case may it begin again at once
			b.Copies.Rest(c.one.To, now)
		case ask.CopyVoid:
		}
		b.landed.Store(b.Clock.Since(b.Clock.Now())) // after the index knows, and before the copy is no longer under way
		b.Copies.End(c.one, now)
		if how == ask.Copied {
			b.Waiters.Landed(c.one.To)
		} else {
			b.Waiters.Freed(c.one.To)
		}
		b.ahead.look()
	})
}

// copied adds the copy for which a request has waited to the ways of its decision.
func (b *Booker) copied(s *evaluate.Evaluation, w *Wait) {
	if w.Copy == nil {
		return
	}
	way := w.Way
	way.Began = b.Clock.Time(w.Copy.Begun)
	if ended := w.Copy.Ended(); ended != 0 {
		way.Ended = b.Clock.Time(ended)
	}
	s.Decision.Ways = append(s.Decision.Ways, way)
}

// Landed is when the last copy ended, on the chooser's scale.
func (b *Booker) Landed() int64 { return b.landed.Load() }
