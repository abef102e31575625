package answer

import (
	"context"
	"strconv"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/opening"
	"github.com/kvpilot/kvpilot/server/wire/retry"
)

// The results of answers without a token, as metrics distinguish them.
const (
	// emptyRetried: another replica gave an answer, so that it counts against this one.
	emptyRetried = "retried"
	// emptyAgreed: another replica gave none either, so that it is the request's doing. The client gets it.
	emptyAgreed = "agreed"
	// emptyPassed: no other replica could be asked, or none answered. The client gets it.
	emptyPassed = "passed"
)

func emptyResults() []string { return []string{emptyRetried, emptyAgreed, emptyPassed} }

// expect prepares d for the answer of the attempt under way.
func expect(rq *intake.Request, t *attempt.Tries, d *attempt.Delivery, streamed bool) {
	waits := t.Blank == nil && t.Point == nil && rq.Call.Route.Generates() && rq.Parsed.Prompt.API != prompt.APIOther &&
		rq.Upload == nil && rq.Holder == "" && rq.Call.Options.Pinned == "" && t.Ask.Attempt+1 < rq.Settings.Attempts &&
		d.Attempt.Choice.Decision.HasOtherReplica()
	shape := opening.Shape{API: rq.Parsed.Prompt.API, Choices: max(1, rq.Parsed.N), Streamed: streamed}
	d.Opening.Begin(shape, waits, streamed && d.Attempt.IsSplit())
}

// withhold keeps the answer under way, which has nothing in it, and has another replica asked.
func withhold(t *attempt.Tries, d *attempt.Delivery) *attempt.Failure {
	a := d.Attempt
	t.Blank = &attempt.Blank{Choice: a.Choice, Status: a.Response.Status, Header: a.Response.Header, Body: d.Opening.Kept()}
	return &attempt.Failure{Outcome: retry.Empty, Public: apierror.New(apierror.UpstreamError, "the replica's answer was empty", nil)}
}

// blanks judges answers without a token, and gives the client one where no other replica gave a better one.
type blanks struct {
	empties *instruments.Keyed[string]
	limits  *intake.Accounts
}

// compared judges an answer without a token by what another replica gave for the same request.
func (b *blanks) compared(t *attempt.Tries, d *attempt.Delivery) {
	if t.Blank == nil {
		return
	}
	if d.Opening.Empty(&d.Scan) {
		b.empties.Add(emptyAgreed)
		return
	}
	t.Blank.Choice.Emptied()
	b.empties.Add(emptyRetried)
}

// Give gives the client the answer without a token that no other replica could better. It reports false when there is none.
func (b *blanks) Give(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery) (given bool, err error) {
	kept := t.Blank
	if kept == nil || d.Begun || ctx.Err() != nil {
		return false, nil
	}
	b.empties.Add(emptyPassed)
	d.Begun, d.Status = true, kept.Status
	(&attempt.Attempt{Choice: kept.Choice}).Explain(rq, kept.Header)
	b.limits.Explain(rq, kept.Header)
	kept.Header.Set("Content-Length", strconv.Itoa(len(kept.Body)))
	if err = d.To.Begin(kept.Status, kept.Header); err == nil && len(kept.Body) > 0 {
		err = d.To.Write(kept.Body)
	}
	if err != nil {
		err = attempt.Gone(err)
	}
	return true, err
}

func newEmpties(s *instruments.Set) *instruments.Keyed[string] {
	empties := instruments.NewKeyed(s, intake.MetricNS+"empty_answers", "{answer}", "Answers without a token where one was due, by result: retried (another replica gave one), agreed (another gave none either) or passed (no other replica could be asked).", emptyResults(), intake.ByResult)
	return &empties
}
