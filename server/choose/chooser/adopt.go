package chooser

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Decided is a choice that another router made, for a request of this one or of its own.
type Decided struct {
	// Decision has the pick, with Slot as this process numbers ranks, as its only candidate.
	Decision *decision.Decision
	Replica  *replica.Replica
	Rank     int
	// Hashes are the prompt's, in the rank's block size.
	Hashes []blockhash.Hash
	// Recorded is set when another router's log has the decision, and will have its outcome.
	Recorded bool
}

// Adopt books what another router has decided for req and returns the choice, as Choose does. Nothing is asked of the index or the
// queue, and the speed of ranks is not learned from it: the loads that go with it are known to the other router. For a request that
// is not booked (DryRun, Unbooked) the choice has the decision alone. It returns an ErrInvalid, an ErrDuplicate, a *Refused when the
// book is full, or load.ErrNoRank.
func (c *Chooser) Adopt(req *Request, by Decided) (*Choice, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	d, cand := by.Decision, by.Decision.Pick()
	choice := &Choice{Decision: d, Replica: by.Replica, Rank: by.Rank, Slot: cand.Slot}
	if req.DryRun || req.Unbooked {
		if req.Unbooked && !by.Recorded {
			c.remember(d, req, c.lineFor(req.Model), by.Hashes, d.At)
		}
		c.publishUnless(by.Recorded, d)
		return choice, nil
	}
	booking := load.Request{
		ID: req.ID, Tenant: req.Tenant, Attempt: uint32(req.Attempt), Slot: cand.Slot, PromptTokens: req.PromptTokens,
		PrefillTokens: int(cand.Uncached), PrefillTime: duration(cand.Prefill * (1 + cand.Slowdown)),
		Hashes: by.Hashes, BlockSize: int(cand.BlockSize), ExpectedTokens: req.ExpectedOutput,
		Lease: req.Lease, Unstreamed: req.Unstreamed || req.Lease != 0 && !req.Reports, Again: req.Again,
	}
	if d.TooLong {
		booking.PromptTokens, booking.PrefillTokens, booking.PrefillTime, booking.Hashes = 0, 0, 0, nil
	}
	res, err := c.params.Book.Reserve(booking)
	switch {
	case err == nil:
	case errors.Is(err, load.ErrNoRank):
		return nil, err
	case errors.Is(err, load.ErrEnded), errors.Is(err, load.ErrStale):
		return nil, fmt.Errorf("%w: %w", ErrDuplicate, err)
	case errors.Is(err, load.ErrFull):
		return nil, &Refused{Cause: "reservations_full"}
	default:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	choice.chooser, choice.line, choice.reservation, choice.rank = c, c.lineFor(req.Model), res, c.rank(cand.Slot)
	choice.at, choice.streamed, choice.leased = d.At, !req.Unstreamed, req.Lease != 0
	choice.silent = req.Unstreamed || req.Lease != 0 && !req.Reports
	choice.unread, choice.samples, choice.certain, choice.observer = req.Unread, req.Samples, req.certain(cand), req.Observer
	choice.adopted, choice.quiet, choice.pool = true, by.Recorded, req.Replicas
	if req.Estimated {
		choice.stores = c.params.Index.Stores(cand.Slot)
	}
	if len(booking.Hashes) > 0 && cand.Feed != kvblock.FeedNone {
		choice.belief = c.params.Index.Predict(cand.Slot, booking.Hashes, d.At.Add(2*duration(cand.TTFT)+beliefSlack))
	}
	if !d.TooLong {
		c.remember(d, req, choice.line, booking.Hashes, d.At)
	}
	if choice.leased {
		c.booked.Store(bookedName{req.Tenant, req.ID}, choice)
	}
	choice.track(req, booking.PrefillTime)
	c.publishUnless(by.Recorded, d)
	return choice, nil
}

func (c *Chooser) publishUnless(recorded bool, d *decision.Decision) {
	if !recorded {
		c.publish(d)
	}
}

// PolicyOf is the policy that decides req.
func (c *Chooser) PolicyOf(req *Request) decision.Policy {
	if p := req.Options.Policy; p != "" {
		return p
	}
	return c.settingsOf(req).of(req.Model).policy
}

// BlockSizes lists the distinct block sizes of the pool's ranks in tokens.
func (c *Chooser) BlockSizes(replicas []*replica.Replica) []int {
	var sizes []int
	for _, r := range replicas {
		for _, slot := range r.Slots {
			if size := c.blockSize(slot, r); !slices.Contains(sizes, size) {
				sizes = append(sizes, size)
			}
		}
	}
	return sizes
}

// blockSize is a rank's block size in tokens, as far as it is known.
func (c *Chooser) blockSize(slot replica.Slot, r *replica.Replica) int {
	return cmp.Or(c.params.Index.BlockSize(slot), r.BlockSize, defaultBlock)
}

// Booked reports whether the choice has a reservation.
func (c *Choice) Booked() bool { return c.reservation != nil }
