package direct

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/router/tunnel"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Upgrade is a client that waits for its connection to become a WebSocket.
type Upgrade interface {
	// Switch answers the client with these headers in addition to those of the switch itself, and returns the connection. It is called
	// at most once. An error means that the client disconnected, or must not get the connection.
	Switch(header http.Header) (io.ReadWriteCloser, error)
}

// Realtime connects clients and replicas by WebSockets.
type Realtime struct {
	intake   *intake.Intake
	attempts *attempt.Dispatcher
	upstream *upstream.Client
}

// NewRealtime makes a realtime.
func NewRealtime(in *intake.Intake, attempts *attempt.Dispatcher, client *upstream.Client) *Realtime {
	return &Realtime{intake: in, attempts: attempts, upstream: client}
}

// Serve connects the client of a call, which waits at up, with a replica. model is the handshake's, empty for none.
func (rl *Realtime) Serve(ctx context.Context, rq *intake.Request, d *attempt.Delivery, model string, up Upgrade) error {
	if err := rl.intake.Socket(ctx, rq, model); err != nil {
		return err
	}
	t := attempt.NewTries(rq)
	// Only the two ends know when it computes, and it may be idle for hours.
	t.Ask.Unstreamed, t.Ask.Quiet = true, true
	if f := rl.attempts.Retries.Run(ctx, rq, t, d, func() *attempt.Failure { return rl.connect(ctx, rq, t, d, up) }); f != nil {
		return f.Public
	}
	return nil
}

// connect has the chosen replica and the client switch, and passes bytes between them. Every way out ends the reservation. It
// returns nil when the WebSocket came to its end.
func (rl *Realtime) connect(ctx context.Context, rq *intake.Request, t *attempt.Tries, d *attempt.Delivery, up Upgrade) (f *attempt.Failure) {
	a := attempt.NewAttempt(func() {})
	if f = rl.attempts.Choose(ctx, rq, t, d, a); f != nil {
		return f
	}
	a.Hop = attempt.BeginHop(rq, a)
	end := decision.EndFailed
	defer func() { rl.attempts.End(ctx, rq, d, f, end) }()
	out := &upstream.Request{
		Method: rq.Call.EngineMethod(), Path: rq.Call.EnginePath(), Query: rq.Call.RawQuery, Header: rq.Call.Header, Client: rq.Call.Client, RequestID: rq.EngineID(), Steers: rq.Call.Steers,
	}
	a.Hop.Observe(out, intake.Clip(out.Path, 256))
	there, resp, err := rl.upstream.Upgrade(ctx, upstream.Target{Replica: a.Choice.Replica, Rank: a.Choice.Rank}, out)
	if there == nil {
		outcome := upstream.Classify(resp, err)
		a.Hop.Answered(resp, outcome)
		f := worded(rl.attempts.Refusals.Refusal(ctx, a, resp, err, outcome))
		rl.attempts.Blame.Settle(rq, d, a, f.Outcome)
		end = attempt.EndOf(f.Outcome)
		return f
	}
	defer there.Close()
	a.Hop.Answered(&upstream.Response{Status: http.StatusSwitchingProtocols}, retry.OK)
	rl.attempts.Blame.Settle(rq, d, a, retry.OK)
	delete(there.Header, attempt.HeaderRetryAfter)
	a.Explain(rq, there.Header)
	here, err := up.Switch(there.Header)
	if err != nil {
		end = decision.EndCanceled
		return &attempt.Failure{Outcome: retry.Canceled, Public: switchError(err)}
	}
	defer here.Close()
	d.Begin(http.StatusSwitchingProtocols)
	if f = tunnelEnd(tunnel.Pass(ctx, rq.Settings.RealtimeIdle, a.Choice.Alive, here, there)); f == nil {
		end = decision.EndCompleted
		return nil
	}
	a.EndedEarly()
	if f.Outcome == retry.Broken {
		// Its health is checked at once. The breaker does not count it: the engine may have closed the connection because of the client.
		rl.attempts.Blame.Probe(a.Choice.Replica.ID)
		return f
	}
	end = decision.EndCanceled
	return f
}

// switchError is why the client did not switch.
func switchError(err error) *apierror.Error {
	if refused, ok := errors.AsType[*apierror.Error](err); ok {
		return refused
	}
	return apierror.From(errors.Join(context.Canceled, err))
}

// worded gives a refusal without an error object one: engines answer handshakes by other means than requests.
func worded(f *attempt.Failure) *attempt.Failure {
	if f.Public.Answer == nil {
		return f
	}
	var shape struct{ Error struct{ Message string } }
	if json.Unmarshal(f.Public.Answer.Body, &shape) == nil && shape.Error.Message != "" {
		return f
	}
	status := f.Public.Answer.Status
	text := intake.MustJSON(map[string]any{"error": map[string]any{
		"message": "the replica refused the WebSocket: " + strings.ToLower(http.StatusText(status)), "type": "invalid_request_error", "param": nil, "code": status,
	}})
	f.Public = apierror.Upstream(status, "application/json", text)
	return f
}

// tunnelEnd judges why a WebSocket ended; closed is set when one of the two had sent the message that closes it.
func tunnelEnd(cause error, closed bool) *attempt.Failure {
	stopping, byRouter := errors.AsType[*apierror.Error](cause)
	switch {
	case byRouter:
		return &attempt.Failure{Outcome: retry.Canceled, Public: stopping}
	case closed:
		return nil
	case errors.Is(cause, tunnel.ErrIdle):
		return &attempt.Failure{Outcome: retry.Canceled, Public: apierror.New(apierror.DeadlineExceeded, "the WebSocket was idle for too long (router.realtime_idle)", cause)}
	case errors.Is(cause, tunnel.ErrReplicaEnd):
		return &attempt.Failure{Outcome: retry.Broken, Public: apierror.New(apierror.UpstreamStreamBroken, "the replica closed the WebSocket without a close frame", cause)}
	}
	return &attempt.Failure{Outcome: retry.Canceled, Public: apierror.From(errors.Join(context.Canceled, cause))}
}
