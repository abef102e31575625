package chooser

import (
	"context"
	"errors"

	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/replica"
)

// Chooser decides and books. Make one with New and give it life with Run.
type Chooser struct{}

// Params are what a Chooser works with.
type Params struct {
	// OnDecision, when set, receives each decision that was made (dry runs included) and must not
	// block; OnOutcome receives what became of each that was booked.
	OnDecision func(*decision.Decision)
	OnOutcome  func(decision.Outcome)
}

// New returns a Chooser.
func New(cfg Config, params Params) (*Chooser, error) { return &Chooser{}, nil }

// Run keeps time for the hold queue and the load estimate until ctx ends.
func (c *Chooser) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Choose decides which rank serves req and books it there. It waits in the hold queue while no
// suitable rank has room, at most until ctx ends. It returns *NoReplica, *Refused, an ErrInvalid,
// an ErrDuplicate or the context's error.
func (c *Chooser) Choose(ctx context.Context, req *Request) (*Choice, error) {
	return nil, errors.ErrUnsupported
}

// AddRank tells that rank index of r exists at slot; RemoveRank that it is gone, which frees its load.
func (c *Chooser) AddRank(slot replica.Slot, r *replica.Replica, rank int) {}

// RemoveRank forgets a rank.
func (c *Chooser) RemoveRank(slot replica.Slot) {}

// PrefillCompleted, Progress and Finish are Choice's FirstToken, Progress and Release for callers
// outside this process, by reservation id and attempt. They return ErrUnknown for ids that do not
// exist or have ended; repeating a call changes nothing.
func (c *Chooser) PrefillCompleted(id string, attempt int) error { return ErrUnknown }

// Progress reports the output tokens so far and renews the lease.
func (c *Chooser) Progress(id string, attempt, outputTokens int) error { return ErrUnknown }

// Finish ends the reservation.
func (c *Chooser) Finish(id string, attempt int, result Result) error { return ErrUnknown }
