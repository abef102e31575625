package router

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
	"github.com/kvpilot/kvpilot/server/route/router/tunnel"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
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
	intake   *intake
	retries  *retrier
	attempts *dispatcher
	refusals refusals
	blame    *blame
	upstream *upstream.Client
}

func (rl *realtime) serve(ctx context.Context, rq *request, d *delivery, model string, up Upgrade) error {
	session, source := openai.SessionFrom(rq.call.Header, rq.set.sessions)
	rq.parsed = &openai.Request{Route: openai.RouteRealtime, Model: model, N: 1, Session: session, SessionSource: source}
	rq.parsed.SessionReturn, rq.parsed.SessionEnds = openai.SessionReturn(rq.call.Header)
	if err := rl.findPool(rq); err != nil {
		return err
	}
	if err := rl.intake.places.place(ctx, rq); err != nil {
		return err
	}
	t := newTries(rq)
	// Only the two ends know when it computes, and it may be idle for hours.
	t.ask.Unstreamed, t.ask.Quiet = true, true
	if f := rl.retries.attempt(ctx, rq, t, d, func() *failure { return rl.connect(ctx, rq, t, d, up) }); f != nil {
		return f.public
	}
	return nil
}

// findPool finds the replicas. The model of a session is named inside the WebSocket, so a handshake without one goes to
// the first pool that can serve.
func (rl *realtime) findPool(rq *request) error {
	snapshot := rl.intake.places.registry.Snapshot()
	pool, ok := snapshot.Pool(rq.parsed.Model)
	switch {
	case rq.parsed.Model == "":
		if pool, ok = pools.FirstReady(snapshot); !ok {
			return apierror.New(apierror.NoReplica, "no replica can take a request now", nil, apierror.WithRetryAfter(time.Second))
		}
	case !ok:
		return pools.Unknown(rq.parsed.Model, snapshot)
	case pool.Served != rq.parsed.Model:
		query, err := url.ParseQuery(rq.call.RawQuery)
		if err != nil {
			return apierror.New(apierror.InvalidBody, "the query cannot be read", err)
		}
		query.Set("model", pool.Served)
		rq.call.RawQuery = query.Encode()
	}
	rq.pool, rq.adapter = pool, pool.Adapter
	return nil
}

// connect has the chosen replica and the client switch, and passes bytes between them. Every way out ends the reservation. It
// returns nil when the WebSocket came to its end.
func (rl *realtime) connect(ctx context.Context, rq *request, t *tries, d *delivery, up Upgrade) (f *failure) {
	a := &attempt{halt: halt{cancel: func() {}}}
	if f = rl.attempts.choose(ctx, rq, t, d, a); f != nil {
		return f
	}
	a.hop = beginHop(rq, a)
	end := decision.EndFailed
	defer func() { rl.attempts.end(ctx, rq, d, f, end) }()
	out := &upstream.Request{
		Method: rq.call.method(), Path: rq.call.path(), Query: rq.call.RawQuery, Header: rq.call.Header, Client: rq.call.Client, RequestID: rq.engineID(), Steers: rq.call.Steers,
	}
	a.hop.Observe(out, clip(out.Path, 256))
	there, resp, err := rl.upstream.Upgrade(ctx, upstream.Target{Replica: a.choice.Replica, Rank: a.choice.Rank}, out)
	if there == nil {
		outcome := upstream.Classify(resp, err)
		a.hop.Answered(resp, outcome)
		f := worded(rl.refusals.refusal(ctx, a, resp, err, outcome))
		rl.blame.settle(rq, d, a, f.outcome)
		end = endOf(f.outcome)
		return f
	}
	defer there.Close()
	a.hop.Answered(&upstream.Response{Status: http.StatusSwitchingProtocols}, retry.OK)
	rl.blame.settle(rq, d, a, retry.OK)
	delete(there.Header, headerRetryAfter)
	rq.explain(a, there.Header)
	here, err := up.Switch(there.Header)
	if err != nil {
		end = decision.EndCanceled
		return &failure{outcome: retry.Canceled, public: switchError(err)}
	}
	defer here.Close()
	d.begun, d.status = true, http.StatusSwitchingProtocols
	if f = tunnelEnd(tunnel.Pass(ctx, rq.set.RealtimeIdle, a.choice.Alive, here, there)); f == nil {
		end = decision.EndCompleted
		return nil
	}
	a.endedEarly()
	if f.outcome == retry.Broken {
		// Its health is checked at once. The breaker does not count it: the engine may have closed the connection because of the client.
		rl.blame.registry.ReportFailure(a.choice.Replica.ID, errAnswer)
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
	text := mustJSON(map[string]any{"error": map[string]any{
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
