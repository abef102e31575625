package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
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

// realtime connects clients and replicas by WebSockets.
type realtime struct {
	intake   *intake.Intake
	attempts *dispatcher
	upstream *upstream.Client
}

func (rl *realtime) serve(ctx context.Context, rq *intake.Request, d *delivery, model string, up Upgrade) error {
	if err := rl.intake.Socket(ctx, rq, model); err != nil {
		return err
	}
	t := newTries(rq)
	// Only the two ends know when it computes, and it may be idle for hours.
	t.ask.Unstreamed, t.ask.Quiet = true, true
	if f := rl.attempts.retries.attempt(ctx, rq, t, d, func() *failure { return rl.connect(ctx, rq, t, d, up) }); f != nil {
		return f.public
	}
	return nil
}

// connect has the chosen replica and the client switch, and passes bytes between them. Every way out ends the reservation. It
// returns nil when the WebSocket came to its end.
func (rl *realtime) connect(ctx context.Context, rq *intake.Request, t *tries, d *delivery, up Upgrade) (f *failure) {
	a := newAttempt(func() {})
	if f = rl.attempts.choose(ctx, rq, t, d, a); f != nil {
		return f
	}
	a.hop = beginHop(rq, a)
	end := decision.EndFailed
	defer func() { rl.attempts.end(ctx, rq, d, f, end) }()
	out := &upstream.Request{
		Method: rq.Call.EngineMethod(), Path: rq.Call.EnginePath(), Query: rq.Call.RawQuery, Header: rq.Call.Header, Client: rq.Call.Client, RequestID: rq.EngineID(), Steers: rq.Call.Steers,
	}
	a.hop.Observe(out, intake.Clip(out.Path, 256))
	there, resp, err := rl.upstream.Upgrade(ctx, upstream.Target{Replica: a.choice.Replica, Rank: a.choice.Rank}, out)
	if there == nil {
		outcome := upstream.Classify(resp, err)
		a.hop.Answered(resp, outcome)
		f := worded(rl.attempts.refusals.refusal(ctx, a, resp, err, outcome))
		rl.attempts.blame.settle(rq, d, a, f.outcome)
		end = endOf(f.outcome)
		return f
	}
	defer there.Close()
	a.hop.Answered(&upstream.Response{Status: http.StatusSwitchingProtocols}, retry.OK)
	rl.attempts.blame.settle(rq, d, a, retry.OK)
	delete(there.Header, headerRetryAfter)
	a.explain(rq, there.Header)
	here, err := up.Switch(there.Header)
	if err != nil {
		end = decision.EndCanceled
		return &failure{outcome: retry.Canceled, public: switchError(err)}
	}
	defer here.Close()
	d.begun, d.status = true, http.StatusSwitchingProtocols
	if f = tunnelEnd(tunnel.Pass(ctx, rq.Settings.RealtimeIdle, a.choice.Alive, here, there)); f == nil {
		end = decision.EndCompleted
		return nil
	}
	a.endedEarly()
	if f.outcome == retry.Broken {
		// Its health is checked at once. The breaker does not count it: the engine may have closed the connection because of the client.
		rl.attempts.blame.probe(a.choice.Replica.ID)
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
func worded(f *failure) *failure {
	if f.public.Answer == nil {
		return f
	}
	var shape struct{ Error struct{ Message string } }
	if json.Unmarshal(f.public.Answer.Body, &shape) == nil && shape.Error.Message != "" {
		return f
	}
	status := f.public.Answer.Status
	text := intake.MustJSON(map[string]any{"error": map[string]any{
		"message": "the replica refused the WebSocket: " + strings.ToLower(http.StatusText(status)), "type": "invalid_request_error", "param": nil, "code": status,
	}})
	f.public = apierror.Upstream(status, "application/json", text)
	return f
}

// tunnelEnd judges why a WebSocket ended; closed is set when one of the two had sent the message that closes it.
func tunnelEnd(cause error, closed bool) *failure {
	stopping, byRouter := errors.AsType[*apierror.Error](cause)
	switch {
	case byRouter:
		return &failure{outcome: retry.Canceled, public: stopping}
	case closed:
		return nil
	case errors.Is(cause, tunnel.ErrIdle):
		return &failure{outcome: retry.Canceled, public: apierror.New(apierror.DeadlineExceeded, "the WebSocket was idle for too long (router.realtime_idle)", cause)}
	case errors.Is(cause, tunnel.ErrReplicaEnd):
		return &failure{outcome: retry.Broken, public: apierror.New(apierror.UpstreamStreamBroken, "the replica closed the WebSocket without a close frame", cause)}
	}
	return &failure{outcome: retry.Canceled, public: apierror.From(errors.Join(context.Canceled, cause))}
}
