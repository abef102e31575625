package answer

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// The kinds of streams: those that continue by token ids, those that are repeated, and the others by their API.
const (
	kindChat       = "chat"
	kindCompletion = "completion"
	kindParsed     = "parsed"
	kindRepeated   = "repeated"
	kindMessages   = "messages"
	kindResponses  = "responses"
	kindOther      = "other"
)

// Why a stream lost its replica after its first byte.
const (
	causeBroken   = "broken"   // its connection ended
	causeError    = "error"    // the engine reported a failure in it
	causeStalled  = "stalled"  // the replica stopped in the middle of it
	causeAborted  = "aborted"  // the engine aborted it
	causeDiverged = "diverged" // another replica repeated it in another way
	causeDrain    = "drain"    // the replica drains, and its requests move
	causeHalted   = "halted"   // its engine is paused or asleep
	causeGone     = "gone"     // the replica left the fleet
)

// interruption is a stream that lost its replica, as the labels of metrics distinguish it.
type interruption struct {
	kind, cause string
	continued   bool
}

// interruptions counts streams that lost their replica.
type interruptions struct {
	instruments.Keyed[interruption]
}

func newInterruptions(s *instruments.Set) *interruptions {
	var all []interruption
	for _, kind := range []string{kindChat, kindCompletion, kindParsed, kindRepeated, kindMessages, kindResponses, kindOther} {
		for _, cause := range []string{causeBroken, causeError, causeStalled, causeAborted, causeDiverged, causeDrain, causeHalted, causeGone} {
			if cause != causeDiverged { // a repetition is what diverges: it is not continued once more
				all = append(all, interruption{kind, cause, true})
			}
			switch cause {
			case causeDrain, causeHalted, causeGone: // stays where it is until it is over or one of the others
				continue
			case causeDiverged:
				if kind != kindRepeated && kind != kindMessages && kind != kindResponses {
					continue
				}
			}
			all = append(all, interruption{kind, cause, false})
		}
	}
	return &interruptions{instruments.NewKeyed(s, intake.MetricNS+"interrupted", "{stream}", "Streams that lost their replica after their first byte, by kind (chat, completion, parsed, repeated, messages, responses, other), cause (broken, error, stalled, aborted, diverged; of moves drain, halted, gone) and result (continued, lost). A stream counts each time.", all,
		func(i interruption) metric.MeasurementOption {
			result := "lost"
			if i.continued {
				result = "continued"
			}
			return instruments.Labels(attribute.String("kind", i.kind), attribute.String("cause", i.cause), attribute.String("result", result))
		})}
}

// kindOf is the kind of a stream; the follower may be nil.
func kindOf(rq *intake.Request, f *resume.Follower) string {
	api := rq.Parsed.Prompt.API
	switch {
	case api == prompt.APIMessages:
		return kindMessages
	case api == prompt.APIResponses:
		return kindResponses
	case f != nil && f.Repeats():
		return kindRepeated
	case f != nil && f.Parsed():
		return kindParsed
	case api == prompt.APIChat:
		return kindChat
	case api == prompt.APICompletions:
		return kindCompletion
	}
	return kindOther
}

// causeOf is why a stream lost its replica, with f.
func causeOf(a *attempt.Attempt, f *attempt.Failure) string {
	for _, known := range []struct {
		err   error
		cause string
	}{{resume.ErrDiverged, causeDiverged}, {resume.ErrAborted, causeAborted}, {resume.ErrFailed, causeError}, {attempt.ErrStalled, causeStalled}} {
		if errors.Is(f.Public, known.err) {
			return known.cause
		}
	}
	if a != nil && a.Stopped.Load() {
		return causeStalled
	}
	return causeBroken
}

// leftFor is why the requests of an attempt's rank move.
func leftFor(a *attempt.Attempt, view *registry.Snapshot) string {
	switch r, there := view.Replica(a.Choice.Replica.ID); {
	case !there:
		return causeGone
	case r.State == replica.StateDraining, r.IsRankDrained(a.Choice.Rank):
		return causeDrain
	}
	return causeHalted
}
