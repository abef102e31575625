package attempt

import (
	"net/http"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/poison"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// Tries is what the attempts of a request share: the question to the chooser, and the results of the earlier attempts.
type Tries struct {
	Ask    chooser.Request
	failed *Failure // the last attempt's
	// before is the time that replicas took until a stream was resumed.
	before time.Duration
	point  *resume.Point
	warms  bool
	// refusals is how many replicas gave nothing of the rest of a stream, since its last break.
	refusals int
	// passed is how many choices were dropped because the replica's breaker had just opened.
	passed int
	// blank is an answer without a token that the client may get after all.
	blank  *Blank
	deaths deaths
	// carried follows a stream that another router has begun, up to the point; nil for any other.
	carried *resume.Follower
}

// Spend counts the time that an attempt took, whose answer others continue.
func (t *Tries) Spend(a *Attempt) { t.before += a.held + time.Since(a.chosen) }

// Warm has the next replica compute the context of a stream, without an answer.
func (t *Tries) Warm() { t.warms = true }

// Carry has the attempts continue a stream that another router has begun.
func (t *Tries) Carry(f *resume.Follower) { t.carried = f }

// Refused counts a replica that gave nothing of the rest of a stream.
func (t *Tries) Refused() { t.refusals++ }

// Taken forgets the replicas that gave nothing before one gave a part.
func (t *Tries) Taken() { t.refusals = 0 }

// Withhold keeps an answer without a token that the client may get after all.
func (t *Tries) Withhold(b *Blank) { t.blank = b }

// Blank is an answer without a token that the client may get after all; nil without one.
func (t *Tries) Blank() *Blank { return t.blank }

// Point is where a stream is continued; nil for the whole answer.
func (t *Tries) Point() *resume.Point { return t.point }

// Refusals is how many replicas gave nothing of the rest of a stream, since its last break.
func (t *Tries) Refusals() int { return t.refusals }

// Carried follows a stream that another router has begun, up to the point; nil for any other.
func (t *Tries) Carried() *resume.Follower { return t.carried }

// IsPoison reports whether the request has stopped two replicas at the same token.
func (t *Tries) IsPoison() bool { return t.deaths.Named }

// Learn copies the results of attempts for a part of the answer.
func (t *Tries) Learn(from *Tries) {
	t.Ask.Attempt, t.Ask.Exclude = from.Ask.Attempt, from.Ask.Exclude
	t.passed, t.before, t.deaths = from.passed, from.before, from.deaths
}

// tried is how many replicas the request was sent to before.
func (t *Tries) tried() int { return t.Ask.Attempt - t.passed }

// passOver prepares another choice instead of one that was dropped.
func (t *Tries) passOver(id replica.ID) {
	t.Ask.Avoid = append(t.Ask.Avoid, id)
	t.Ask.Attempt++
	t.passed++
}

// Next prepares the attempt after one that ended with f, on another replica.
func (t *Tries) Next(a *Attempt, f *Failure) {
	t.failed = f
	t.Ask.Exclude = append(t.Ask.Exclude, a.Choice.Replica.ID)
	t.Ask.Attempt++
}

// Readmit allows the replica of an attempt again that only its rank was left for.
func (t *Tries) Readmit(a *Attempt, view *registry.Snapshot) {
	if LeavesRank(a, view) {
		t.Ask.Exclude = slices.DeleteFunc(t.Ask.Exclude, func(id replica.ID) bool { return id == a.Choice.Replica.ID })
	}
}

// LeavesRank reports whether the rank of an attempt drains, while others of its replica take requests.
func LeavesRank(a *Attempt, view *registry.Snapshot) bool {
	r, there := view.Replica(a.Choice.Replica.ID)
	return there && r.State == replica.StateReady && r.IsRankDrained(a.Choice.Rank)
}

// mayMove reports whether the request may be retried on another replica when its rank is stalled. The last attempt runs
// to its end: if every engine takes that long, another one does not help.
func (t *Tries) mayMove(rq *intake.Request) bool {
	tried := t.tried()
	if t.point != nil {
		tried = t.refusals
	}
	return rq.Upload == nil && rq.Call.Options.Pinned == "" && len(t.Ask.Replicas) > 1 && tried+1 < rq.Settings.Attempts
}

// NewTries makes the question to the chooser for the first attempt.
func NewTries(rq *intake.Request) *Tries {
	t := &Tries{before: rq.Standby.Took, Ask: chooser.Request{
		Settings: rq.Policies, Bytes: rq.Size(),
		Request: decision.Request{ID: rq.ID, RequestID: rq.Call.RequestID, Tenant: rq.Call.Tenant, Model: rq.Pool.Model, Adapter: rq.Adapter, Side: sideOf(rq.Side)},
		Pool:    chooser.Pool{Served: rq.Pool.Served, Replicas: rq.Pool.Replicas},
		Prompt:  chooser.Prompt{Unread: rq.Parsed.Unread()},
		Caller:  chooser.Caller{Session: rq.Apart(rq.Parsed.Session), SessionReturn: rq.SessionReturn(), Priority: -rq.Parsed.Priority},
		Reply: chooser.Reply{
			ExpectedOutput: rq.Parsed.Expected(), OutputLimit: rq.Parsed.MaxTokens, Samples: rq.Parsed.N,
			Unstreamed: !rq.Parsed.Stream, Uneven: len(rq.Parsed.Raw("tools")) > 0,
		},
		Limits: chooser.Limits{Options: rq.Call.Options, Holder: rq.Holder},
	}}
	rq.FillPrompt(&t.Ask)
	t.Ask.Splittable = rq.Pool.Pairs && (rq.Question == nil || rq.Question.Booking == intake.DryRun) && rq.Upload == nil && openai.Splittable(rq.Parsed)
	if rq.Policies.ReadsText(rq.Pool.Model, &rq.Call.Options) {
		t.Ask.Text = rq.Apart(rq.Parsed.PromptText())
	}
	return t
}

// Blank is an answer without a token that the client does not have, because another replica is asked first.
type Blank struct {
	Choice *chooser.Choice
	Status int
	Header http.Header
	Body   []byte
}

// sideOf is a request's side, as its decisions have it.
func sideOf(a *splits.Assignment) decision.Side {
	if a == nil {
		return decision.Side{}
	}
	return decision.Side{Model: a.Split, Name: a.Side, InsteadOf: a.InsteadOf}
}

// whole has the next attempt serve the request whole. The one before it does not count as a replica that was tried.
func (t *Tries) whole() {
	t.Ask.Splittable = false
	t.Ask.Attempt++
	t.passed++
}

// doubts are what a request's attempts leave open about its faults. The zero value has none.
type doubts struct {
	poison.Doubts
	origin retry.Origin // zero until it is needed
	// Cause is that of the last failure, as far as it is known.
	Cause retry.Cause
}

// ContinueAt makes the rest of the answer what the next replica is chosen for.
func (t *Tries) ContinueAt(rq *intake.Request, point *resume.Point) {
	t.point = point
	if point.Again {
		return
	}
	a := &t.Ask
	a.Splittable = false
	a.PromptTokens, a.Estimated, a.Longest, a.Keyless = len(point.IDs), false, len(point.IDs), false
	a.ExpectedOutput, a.OutputLimit = max(rq.Parsed.Expected()-point.Answer, 0), max(rq.Parsed.MaxTokens-point.Answer, 0)
	ns := rq.Namespace()
	a.Hashes = func(blockSize int) []blockhash.Hash {
		if blockSize <= 0 {
			return nil
		}
		return blockhash.Extend(nil, 0, point.IDs, blockSize, ns.Seed())
	}
}

// Reset forgets what earlier attempts failed at.
func (t *Tries) Reset() { t.refusals, t.deaths = 0, deaths{} }
