package router

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/pools"
	"github.com/kvpilot/kvpilot/server/route/router/story"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/route/standby"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/pins"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// intake makes a request of a call: it reads the body, holds the tenant to its limits, finds the pool and gets the prompt's token ids.
type intake struct {
	set       atomic.Pointer[settings]
	policies  policies
	limits    *accounts
	responses *responses
	standby   standbys
	reader    reader
	sides     sides
	places    places
	encoder   encoder
	// prefix begins the ids of requests.
	prefix string
	tracer trace.Tracer
}

// policies has the settings of the policies that choose; *chooser.Chooser does.
type policies interface{ Settings() *chooser.Settings }

// intakeParams are the parts that an intake joins. All but Fleet, Bodies, Limits, Splits, Standby and Origin are required.
type intakeParams struct {
	Registry *registry.Registry
	Tokens   *tokenizer.Pool
	Upstream *upstream.Client
	Policies policies
	Pins     *pins.Pins
	// Fleet keeps pins where the other routers find them; nil: there are none.
	Fleet FleetPins
	// Bodies remembers what was read from bodies; nil remembers nothing.
	Bodies *openai.Memory
	// Limits keeps tenants to their limits; nil has none.
	Limits quota.Owner
	PerModel
	// Origin begins the ids of decisions and reservations; empty: nothing does.
	Origin string
	Meter  metric.MeterProvider
	Tracer trace.Tracer
}

// PerModel are parts that matter to the models that the settings name.
type PerModel struct {
	// Splits share the requests for models between sides; nil splits none.
	Splits *splits.Splits
	// Standby holds requests for models that are scaled from zero; nil holds none.
	Standby *standby.Room
}

// newIntake makes an intake. attempts bounds the replicas that one request is tried on.
func newIntake(c Config, attempts int, p intakeParams) *intake {
	responses, standby := &responses{pins: p.Pins, fleet: p.Fleet, upstream: p.Upstream}, standbys{p.Standby}
	in := &intake{
		policies: p.Policies, limits: &accounts{owner: p.Limits}, responses: responses, standby: standby,
		reader:  reader{bodies: p.Bodies, steering: newSteering(instruments.New(p.Meter, "server/route/router"))},
		sides:   sides{registry: p.Registry, splits: p.Splits, standby: standby},
		places:  places{registry: p.Registry, standby: standby, responses: responses},
		encoder: encoder{p.Tokens}, prefix: p.Origin, tracer: p.Tracer,
	}
	in.set.Store(newSettings(c, attempts))
	return in
}

// update puts new settings in force, for requests that begin from now on.
func (in *intake) update(c Config, attempts int) { in.set.Store(newSettings(c, attempts)) }

func (in *intake) newRequest(ctx context.Context, call *Call) *request {
	rq := &request{call: call, set: in.set.Load(), span: trace.SpanFromContext(ctx), id: newID(in.prefix), received: call.Received, policies: in.policies.Settings()}
	if rq.received.IsZero() {
		rq.received = time.Now()
	}
	in.reader.checkID(rq)
	if rq.span.IsRecording() {
		rq.story = story.Begin(in.tracer, rq.span, rq.received)
	}
	return rq
}

// prepare learns what the choice needs: limit → read → pool → place → tokenize → book.
func (in *intake) prepare(ctx context.Context, rq *request) error {
	if err := in.limits.enter(rq); err != nil {
		return err
	}
	read := in.reader.read
	if rq.call.Route.TakesForm() {
		read = in.reader.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	in.sides.impose(rq)
	in.limits.capPriority(rq)
	if err := isolate(rq); err != nil {
		return err
	}
	if err := in.places.findPool(ctx, rq); err != nil {
		return err
	}
	if err := denyOld(rq); err != nil {
		return err
	}
	if err := in.places.place(ctx, rq); err != nil {
		return err
	}
	rq.translate(rq)
	rq.askStreamed(rq)
	if err := in.encoder.tokenize(ctx, rq); err != nil {
		return err
	}
	return in.limits.book(rq, rq.parsed.MaxTokens, false)
}

// anywhere prepares a call whose body says nothing about its place: any replica that takes requests may serve it, or the one
// that stores the response. It books nothing.
func (in *intake) anywhere(ctx context.Context, rq *request, stored string) error {
	if err := in.limits.enter(rq); err != nil {
		return err
	}
	rq.parsed, rq.body = &openai.Request{Route: rq.call.Route, N: 1, Model: rq.call.Model}, rq.call.Body
	snapshot := in.places.registry.Snapshot()
	pool, err := pools.Any(snapshot, rq.call.Model, rq.call.Route.Generates())
	if err != nil {
		return err
	}
	rq.pool = pool
	if stored != "" {
		if !in.responses.mayRead(ctx, rq, stored) {
			return unknownResponse(stored)
		}
		if at, owner := in.responses.pinned(ctx, rq.call.Tenant, stored); owner == pins.OwnerSelf {
			rq.holder, rq.pool = at, pools.Of(snapshot, at, pool)
		}
	}
	if rq.holder == "" && rq.call.Options.Pinned != "" {
		return in.places.checkPin(rq)
	}
	return nil
}

// socket learns what the choice for a WebSocket needs. model is the handshake's, empty for none.
func (in *intake) socket(ctx context.Context, rq *request, model string) error {
	session, source := openai.SessionFrom(rq.call.Header, rq.set.sessions)
	rq.parsed = &openai.Request{Route: openai.RouteRealtime, Model: model, N: 1, Session: session, SessionSource: source}
	rq.parsed.SessionReturn, rq.parsed.SessionEnds = openai.SessionReturn(rq.call.Header)
	if err := in.places.findSocketPool(rq); err != nil {
		return err
	}
	return in.places.place(ctx, rq)
}
