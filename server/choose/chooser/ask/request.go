package ask

import (
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
)

// Request is the input of a choice. Slices and functions are only read, and only until
// Choose returns.
type Request struct {
	// Request is its part of the record. Its ID names the reservation; it must be unique among requests in flight. Policies are
	// configured by its Model.
	decision.Request
	Pool
	Prompt
	Caller
	Reply
	Limits
	Terms
	Origin
	Withdrawing

	// Settings are the settings at the request's start; nil takes the settings in force.
	Settings *settings.Settings
	// Bytes is the memory that the request holds while it waits (its body), for the queue's bound.
	Bytes int
	// Explain makes the decision list every rank of a large pool, as a dry run's does.
	Explain bool
	// Sampled says that the trace is kept, so that another router which decides adds its span.
	Sampled bool
}

// Pool is the pool of a request.
type Pool struct {
	// Served is the name of the model that the replicas know; empty: the client's own.
	Served string
	// Replicas are in any state; a replica that may not serve is vetoed with a reason.
	Replicas []*replica.Replica
}

// Prompt has the known facts about a request's prompt.
type Prompt struct {
	// PromptTokens is the prompt's length in tokens; set Estimated when it is a guess.
	PromptTokens int
	Estimated    bool
	// Longest is the length of the request's longest prompt, which the model's context must hold; 0 when
	// it is not known exactly, or when the engine cuts it to fit.
	Longest int
	// Hashes returns the prompt's block hashes for a block size, or names made of its text where no token
	// ids are known; nil when there are neither. It may be called again, later and with other sizes, until
	// Choose returns. Keyless is set when no token ids are known.
	Hashes  func(blockSize int) []blockhash.Hash
	Keyless bool
	// Answer is the part that one rank holds beyond Hashes, because it gave an answer that the prompt continues with.
	Answer Answer
	// Text is the prompt as text, the key of prefix-affinity; empty when there is none. Settings.ReadsText reports
	// whether it is read.
	Text string
	// Unread is set when the engine reads no cached block for this request (prompt_logprobs).
	Unread bool
	// Directory is the answer of a directory about the prompt; nil when none was asked.
	Directory *directory.Answer
}

// Lookup is the question to a directory; nil for none.
func (p *Prompt) Lookup() *decision.Lookup {
	if p.Directory == nil {
		return nil
	}
	return &p.Directory.Lookup
}

// Answer is the part that a rank holds because it gave an answer with ids that are not known yet: if the rank Slot holds the
// first Known tokens of the prompt, as far as they fill blocks, it holds Held tokens. The zero value has no effect.
type Answer struct {
	Slot        replica.Slot
	Known, Held int
}

// Size is the prompt in the record of a decision.
func (p *Prompt) Size(expectedOutput int) decision.Prompt {
	return decision.Prompt{PromptTokens: p.PromptTokens, Estimated: p.Estimated, Keyless: p.Hashes == nil || p.Keyless, ExpectedOutput: expectedOutput}
}

// Certain is how many of cand's overlap tokens belong to blocks with a known name.
func (p *Prompt) Certain(cand *decision.Candidate) uint32 {
	if a := &p.Answer; a.Slot == cand.Slot && a.Held > a.Known {
		return min(cand.GPU, uint32(a.Known)/cand.BlockSize*cand.BlockSize)
	}
	return cand.GPU
}

// HashesFor returns the prompt's hashes in the rank's block size.
func (p *Prompt) HashesFor(cand *decision.Candidate) []blockhash.Hash {
	if p.Hashes == nil {
		return nil
	}
	return p.Hashes(int(cand.BlockSize))
}

// Caller is a sender's statement about itself. Its tenant is in decision.Request.
type Caller struct {
	// Session is the caller's own name; empty for none.
	Session string
	// SessionReturn is in how long the session's next request is expected; 0 when that is not known, NoReturn when none
	// follows.
	SessionReturn time.Duration
	// Priority orders the hold queue: higher goes first, 0 is the default.
	Priority int
}

// SessionName is the session's name apart from other tenants' names; empty for none.
func (req *Request) SessionName() string {
	if req.Session == "" || req.Tenant == "" {
		return req.Session
	}
	return req.Tenant + "\x00" + req.Session
}

// Reply has the known facts about the answer before it comes.
type Reply struct {
	// ExpectedOutput is how many tokens the caller expects, or else its limit; 0 when unknown. OutputLimit is max_completion_tokens or
	// max_tokens, 0 without one: an answer may be longer than expected.
	ExpectedOutput, OutputLimit int
	// Samples is how many answers the engine computes for the prompt; 0 is one. All but the first find
	// the prompt in the cache, and the engine counts the last one's blocks.
	Samples int
	// Unstreamed is set when the first token cannot be seen (a plain JSON answer). The request then
	// counts as prefilled at the predicted time.
	Unstreamed bool
	// Uneven is set when the pieces of the stream do not show how many tokens came, because the engine parses them (tools).
	Uneven bool
	// Quiet is set when a working engine may send nothing for as long as the request lasts: then its silence is no
	// evidence against the rank.
	Quiet bool
}

// Limits are the bounds of a choice.
type Limits struct {
	Options settings.Options
	// Exclude names replicas that must not be tried (again), Avoid the replicas that the asking router finds broken: they are used when
	// nothing else is left.
	Exclude []replica.ID
	Avoid   []replica.ID
	// Holder, when set, is the one replica that can serve because it stores the response that the request continues;
	// it may be draining.
	Holder replica.ID
}

// IsPinned reports whether one replica alone may serve.
func (l *Limits) IsPinned() bool { return l.Options.Pinned != "" || l.Holder != "" }

// Booking is the effect of a choice.
type Booking uint8

// The kinds of booking.
const (
	// Reserve books the request on its rank.
	Reserve Booking = iota
	// Unbooked books nothing, but the request is going to be sent there: the policies that remember requests by rank learn.
	Unbooked
	// DryRun decides, books nothing and teaches nothing; it never waits.
	DryRun
)

// Books reports whether a reservation is made.
func (b Booking) Books() bool { return b == Reserve }

// Terms are the terms of the booking.
type Terms struct {
	Booking Booking
	// Lease, above zero, is the time without a report after which the reservation expires;
	// for callers outside this process. Zero ties it to the Choice alone.
	Lease time.Duration
	// Reports is set when the holder of the lease always reports the first token. Otherwise the
	// prefill counts as done at the predicted time or with the report, whichever comes first.
	Reports bool
	// Again makes the booking although the ID and attempt were booked before: that booking is void.
	Again bool
	// NoQueue never waits: it takes the best rank now.
	NoQueue bool
	// Splittable is set when the caller can have one replica compute the prompt and another one write the answer.
	Splittable bool
	// Copier, when set, can copy the beginning of the prompt from the cache of one rank to another's.
	Copier Copier
}

// Copier copies beginnings of one prompt.
type Copier interface {
	// Copy begins a copy. It is called while the request waits, must not block, and must end the copy with Prefix.Ended, at any time.
	Copy(p *Prefix)
}

// CopyReports receives the progress of a copy. Its methods are safe for concurrent use.
type CopyReports interface {
	// Sent notes that the rank that gets the copy was asked to read it.
	Sent()
	// Ended notes the end of the copy. Only the first call counts.
	Ended(how CopyEnd)
}

// MoveReports receives the progress of a split request.
type MoveReports interface {
	// Sent notes that the request goes to the rank that answers, which reads the prompt's cache. It must not block.
	Sent()
}

// Prefix is a copy of the beginning of a prompt.
type Prefix struct {
	// From has the prefix, To gets it.
	From, To Place
	// Tokens is the length of the prefix in whole blocks; the prompt is longer. Moved are the tokens that To lacks.
	Tokens, Moved int
	// BlockSize is the tokens of each block, Last the key of the last one.
	BlockSize int
	Last      blockhash.Hash
	// Predicted is the predicted time of the copy, the waits for both ranks included.
	Predicted time.Duration
	CopyReports
}

// Place is a rank of a replica.
type Place struct {
	Replica *replica.Replica
	Rank    int
	Slot    replica.Slot
}

// CopyEnd is how a copy ended.
type CopyEnd uint8

// The ends of a copy.
const (
	// Copied: the rank has read it.
	Copied CopyEnd = iota
	// SourceFailed and TargetFailed: it failed because of that rank, which takes part in no copy for a while.
	SourceFailed
	TargetFailed
	// CopyGivenUp: it failed for another reason; the rank that was to get it takes part in no copy for a while.
	CopyGivenUp
	// CopyVoid: it was not begun, or another router counts it.
	CopyVoid
)

// Origin is the way by which the request came among the routers of a fleet.
type Origin struct {
	// AskedBy names the peer that asks, Alone says why this router decides without its peers; both for the record.
	AskedBy string
	Alone   string
	// Age is the time since the request first asked another router; it counts as waited here.
	Age time.Duration
	// Observer, when set, follows the request once it is booked, PrefillObserver the booking of a rank that computes its prompt for another
	// one.
	Observer        Observer
	PrefillObserver Observer
}

// Withdrawing is the way to take a request from a rank that makes no progress.
type Withdrawing struct {
	// Abandon, when set, makes the caller withdraw the request from a rank that makes no progress: when its answer has not
	// begun and Movable is set, or its stream can be resumed (Choice.SetResumable), and another replica can serve it; or
	// when its replica has been unhealthy for long. It is also called for a request whose answer has not begun when its
	// replica's requests are to move. It is called at most once, by any goroutine, so it must only signal.
	// The caller must then end the choice.
	Abandon func(Withdrawal)
	Movable bool
}

// Check returns an ErrInvalid for a request that cannot be decided.
func (req *Request) Check() error {
	if req.ID == "" && req.Booking != DryRun {
		return fmt.Errorf("%w: the id is missing", ErrInvalid)
	}
	if p := req.Options.Policy; p != "" && !p.Known() {
		return fmt.Errorf("%w: unknown policy %q", ErrInvalid, p)
	}
	return nil
}

// Silent reports whether the first token may not be seen.
func (req *Request) Silent() bool { return req.Unstreamed || req.Lease != 0 && !req.Reports }

// Withdrawal is why a request is withdrawn from its rank.
type Withdrawal uint8

// The reasons.
const (
	// Stalled: the rank makes no progress, or not for this request.
	Stalled Withdrawal = iota
	// Leaving: the requests of its replica are to move to others.
	Leaving
)

// LongestAnswer is the length in tokens of the longest answer that the request may get. Of a request from another router only the expected length is known.
func (req *Request) LongestAnswer() int {
	switch {
	case req.OutputLimit > 0:
		return req.OutputLimit
	case req.ExpectedOutput > 0 && req.AskedBy != "":
		return req.ExpectedOutput
	}
	return max(unlimited, req.ExpectedOutput)
}

// NoReturn is the Request.SessionReturn of a session's last request.
const NoReturn = time.Duration(-1)

// unlimited is the length in tokens of an answer that has no limit.
const unlimited = 4096
