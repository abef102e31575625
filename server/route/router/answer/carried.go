package answer

import (
	"context"
	"net/http"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// errNotCarried is the answer to a client whose stream cannot be continued.
func errNotCarried(why string) error {
	return apierror.New(apierror.Conflict, "the stream cannot be continued ("+why+"): send the request again without "+openai.MemberReceived, nil, apierror.WithParam(openai.MemberReceived))
}

// TakeOver prepares the attempts of a request whose client has the beginning of its stream from another router. over is set when the client
// has got all that was missing.
func (an *Answers) TakeOver(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) (over bool, err error) {
	on := rq.Pool.Replicas[0]
	for _, r := range rq.Pool.Replicas {
		if intake.HasTokenRoutes(r) && (rq.Chat == nil || intake.AnswersChat(r)) {
			on = r
			break
		}
	}
	s := &resumed{resumer: an.resumer, rq: rq, tries: t, d: d, follower: an.attempts.Engines.Follow(rq, on)}
	if s.follower == nil {
		return false, errNotCarried("its request is none of those that another replica continues")
	}
	stamp := an.attempts.Engines.Stamp(on, 0)
	stamp.Details = false // of the cache that another router saw nothing is known
	s.follower.Seal(stamp)
	if end, ok := s.follower.Ending(); ok || s.follower.Done() {
		return true, an.giveEnd(d, end)
	}
	point, result := s.point(ctx, false, false)
	if result == resultResumed && !point.Again && len(point.IDs)-point.Answer > len(rq.Call.Body)+intake.TemplateTokens {
		result = resultIneligible // the tenant pays for the prompt of the body
	}
	if result == resultResumed && point.Response != "" && !an.responses.Owns(ctx, rq, point.Response) {
		result = resultIneligible
	}
	if result != resultResumed {
		an.resumer.results.Add(result)
		return false, errNotCarried(result)
	}
	an.resumer.results.Add(resultTaken)
	span.Note(ctx, span.EventResume, span.OutputTokens.Int(point.Answer))
	an.resumer.log.Info("a client continues a stream that another router has begun", "request", rq.Call.RequestID, "tokens", point.Answer)
	rq.Before = point.Answer
	t.Carry(s.follower)
	if point.Again {
		rq.Before = tokensOf(rq)
	}
	t.ContinueAt(rq, point)
	t.Ask.Exclude = s.unable(point, t.Ask.Exclude)
	return false, nil
}

// tokensOf is about how many tokens the client's events are, which have no ids.
func tokensOf(rq *intake.Request) int {
	var scan sse.Scanner
	scan.Reset(rq.Parsed.Prompt.API, true)
	scan.Feed(rq.Events)
	if n := scan.ContentEvents(); n > 0 {
		return rq.TokensIn(n)
	}
	return 0
}

// giveEnd gives a client the end of a stream of which it has all else.
func (an *Answers) giveEnd(d *attempt.Delivery, end []byte) error {
	if err := d.To.Begin(http.StatusOK, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}); err != nil {
		return attempt.Gone(err)
	}
	d.Begin(http.StatusOK)
	if len(end) == 0 {
		return nil
	}
	if err := d.To.Write(end); err != nil {
		return attempt.Gone(err)
	}
	return nil
}
