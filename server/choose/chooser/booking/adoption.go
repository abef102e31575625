package booking

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Decided is a choice that another router made, for a request of this one or of its own.
type Decided struct {
	// Decision has the pick, with Slot as this process numbers ranks, as its only candidate; of a split request, the rank that computes the
	// prompt follows it.
	Decision *decision.Decision
	Replica  *replica.Replica
	Rank     int
	// Hashes are the prompt's, in the rank's block size.
	Hashes []blockhash.Hash
	// Recorded is set when another router's log has the decision, and will have its outcome.
	Recorded bool
	// Prefiller is the replica that computes the prompt of a split request, and Move receives its progress; both nil where the request is
	// served whole.
	Prefiller *replica.Replica
	Move      ask.MoveReports
}

// Adopt books the decision of another router: see Chooser.Adopt.
func (b *Booker) Adopt(req *ask.Request, of *evaluate.Model, by Decided) (*Choice, error) {
	d, cand, record := by.Decision, by.Decision.Pick(), b.Record
	if by.Recorded {
		record = nil
	}
	if !req.Booking.Books() {
		if req.Booking == ask.Unbooked && !by.Recorded {
			b.Memory.Remember(d, req, &of.Trail, by.Hashes, d.At)
		}
		if record != nil {
			record.Decision(d)
		}
		return &Choice{Decision: d, Replica: by.Replica, Rank: by.Rank, Slot: cand.Slot}, nil
	}
	made, err := b.adopted(req, &by)
	switch {
	case err == nil:
	case errors.Is(err, load.ErrNoRank):
		return nil, err
	default:
		return nil, notBooked(err)
	}
	choice := b.newChoice(d, by.Replica, req, of, made.res)
	choice.Rank, choice.answers.External = by.Rank, false
	choice.flight.Rank, choice.flight.Pool = b.Ranks.At(cand.Slot), req.Replicas
	b.adoptProgram(choice, req, of, by.Hashes)
	if made.prefill != nil {
		choice.legs = &legs{reports: by.Move, prefill: b.prefillChoice(by.Prefiller, &d.Candidates[1], req, of, d, &made, false)}
		choice.legs.move.Clock = b.Clock
	}
	b.start(choice, req, of, &made.booking, record)
	if record != nil {
		record.Decision(d)
	}
	return choice, nil
}

// adopted books the ranks of another router's decision.
func (b *Booker) adopted(req *ask.Request, by *Decided) (made booked, err error) {
	d := by.Decision
	if d.Split() == nil || by.Prefiller == nil {
		made.booking = bookingOf(req, d, by.Hashes)
		made.res, err = b.Book.Reserve(made.booking)
		return made, err
	}
	made.booking, made.lead = bookings(req, d.Pick(), &d.Candidates[1])
	return made, b.reserveBoth(&made)
}

// adoptProgram has the ledger count the call of a program that another router placed: a router that becomes the decider then has the
// places of all calls in flight, and of the programs of its own clients in their gaps.
func (b *Booker) adoptProgram(choice *Choice, req *ask.Request, of *evaluate.Model, hashes []blockhash.Hash) {
	horizon := b.Settings.Horizon()
	if horizon == 0 || b.Settings.Or(req.Settings).Of(req.Model).Policy != decision.PredictedTTFT {
		return
	}
	call := of.Claims.Call(b.Memory.Sessions, req, hashes, int(choice.Decision.Pick().BlockSize))
	if call.Name == 0 {
		return
	}
	call.Tokens += answers.Counted(req.ExpectedOutput)
	rank := programs.Rank{Slot: choice.Slot, Held: float64(choice.Decision.Pick().GPU)}
	place := of.Claims.Ledger.Adopt(call, rank, time.Duration(b.Clock.Since(b.Clock.Now())), horizon)
	if place == nil {
		return
	}
	choice.program = claims.Booked{Place: place, Returns: req.SessionReturn, Clock: b.Clock, Settings: b.Settings, Prompt: req.PromptTokens}
	choice.observers.add(&choice.program)
}
