package intake

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/scope"
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

// Intake makes a request of a call: it reads the body, holds the tenant to its limits, finds the pool and gets the prompt's token ids.
type Intake struct {
	set       atomic.Pointer[settings]
	policies  policies
	Limits    *Accounts
	Responses *Responses
	Standby   Standbys
	reader    reader
	sides     sides
	places    places
	encoder   encoder
	lookups   lookups
	// prefix begins the ids of requests.
	prefix string
	tracer trace.Tracer
}

// policies has the settings of the policies that choose; *chooser.Chooser does.
type policies interface{ Settings() *chooser.Settings }

// Params are the parts that an intake joins. All but Fleet, Bodies, Limits, Splits, Standby and Origin are required.
type Params struct {
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
	Scope  scope.Scope
}

// PerModel are parts that matter to some models only.
type PerModel struct {
	// Directory names the parts of prompts that replicas can load from below their GPUs; nil names none.
	Directory Directory
	// Splits share the requests for models between sides; nil splits none.
	Splits *splits.Splits
	// Standby holds requests for models that are scaled from zero; nil holds none.
	Standby *standby.Room
}

// New makes an intake. attempts bounds the replicas that one request is tried on.
func New(c Config, attempts int, p Params) *Intake {
	responses, standby := &Responses{pins: p.Pins, fleet: p.Fleet, upstream: p.Upstream}, Standbys{p.Standby}
	in := &Intake{
		policies: p.Policies, Limits: &Accounts{owner: p.Limits}, Responses: responses, Standby: standby,
		reader:  reader{bodies: p.Bodies, steering: newSteering(p.Scope.Meters())},
		sides:   sides{registry: p.Registry, splits: p.Splits, standby: standby},
		places:  places{registry: p.Registry, standby: standby, responses: responses},
		encoder: encoder{tokens: p.Tokens, directory: p.Directory}, lookups: lookups{p.Directory}, prefix: p.Origin, tracer: p.Scope.Tracer("server/route/router"),
	}
	in.set.Store(newSettings(c, attempts))
	return in
}

// Update puts new settings in force, for requests that begin from now on.
func (in *Intake) Update(c Config, attempts int) { in.set.Store(newSettings(c, attempts)) }

// ShowsOverlap reports whether the caller may see what replicas hold of its prompt, by the settings in force.
func (in *Intake) ShowsOverlap(c Caller) bool { return in.set.Load().ShowsOverlap(c) }

// NewRequest begins a request of a call, under settings that it keeps to its end.
func (in *Intake) NewRequest(ctx context.Context, call *Call) *Request {
	rq := &Request{Call: call, Settings: in.set.Load(), Span: trace.SpanFromContext(ctx), ID: NewID(in.prefix), Received: call.Received, Policies: in.policies.Settings()}
	if rq.Received.IsZero() {
		rq.Received = time.Now()
	}
	in.reader.checkID(rq)
	if rq.Span.IsRecording() {
		rq.Story = story.Begin(in.tracer, rq.Span, rq.Received)
	}
	return rq
}

// Prepare learns what the choice needs: limit → read → pool → place → tokenize → book.
func (in *Intake) Prepare(ctx context.Context, rq *Request) error {
	if err := in.Limits.Enter(rq); err != nil {
		return err
	}
	read := in.reader.read
	if rq.Call.Route.TakesForm() {
		read = in.reader.readForm
	}
	if err := read(rq); err != nil {
		return err
	}
	in.sides.impose(rq)
	in.Limits.capPriority(rq)
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
	in.lookups.find(ctx, rq)
	return in.Limits.Book(rq, rq.Parsed.MaxTokens, false)
}

// Anywhere prepares a call whose body says nothing about its place: any replica that takes requests may serve it, or the one
// that stores the response. It books nothing.
func (in *Intake) Anywhere(ctx context.Context, rq *Request, stored string) error {
	if err := in.Limits.Enter(rq); err != nil {
		return err
	}
	rq.Parsed, rq.Body = &openai.Request{Route: rq.Call.Route, Wanted: openai.Wanted{N: 1}, Model: rq.Call.Model}, rq.Call.Body
	snapshot := in.places.registry.Snapshot()
	pool, err := pools.Any(snapshot, rq.Call.Model, rq.Call.Route.Generates())
	if err != nil {
		return err
	}
	rq.Pool = pool
	if stored != "" {
		if !in.Responses.MayRead(ctx, rq, stored) {
			return UnknownResponse(stored)
		}
		if at, owner := in.Responses.Pinned(ctx, rq.Call.Tenant, stored); owner == pins.OwnerSelf {
			rq.Holder, rq.Pool = at, pools.Of(snapshot, at, pool)
		}
	}
	if rq.Holder == "" && rq.Call.Options.Pinned != "" {
		return in.places.checkPin(rq)
	}
	return nil
}

// Socket prepares a call for a WebSocket. model is the handshake's, empty for none.
func (in *Intake) Socket(ctx context.Context, rq *Request, model string) error {
	session, source := openai.SessionFrom(rq.Call.Header, rq.Settings.sessions)
	rq.Parsed = &openai.Request{Route: openai.RouteRealtime, Model: model, Wanted: openai.Wanted{N: 1}, SessionHints: openai.SessionHints{Session: session, SessionSource: source}}
	rq.Parsed.SessionReturn, rq.Parsed.SessionEnds = openai.SessionReturn(rq.Call.Header)
	if err := in.places.findSocketPool(rq); err != nil {
		return err
	}
	return in.places.place(ctx, rq)
}
