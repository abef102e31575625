package router

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// story is what the spans of a request are drawn from when it is over (draw.go). Each step notes its
// times and results here. It keeps nothing of the request but short texts. A request that is not
// recorded has no story, and noting costs it nothing.
type story struct {
	tracer trace.Tracer
	span   trace.Span // the surface's

	admitted time.Duration // since received; 0 when the surface did not say when it began
	received time.Time
	body     stretch
	asked    asking
	hops     []hop
	failed   bool // an attempt or the request, on our side: the trace is kept whatever the sampler chose

	subject
	ending
}

// subject is the request of a story.
type subject struct {
	route                 openai.Route
	requestID, decisionID string
	understood            bool // the body was read: what follows is known
	kind                  prompt.Kind
	streamed              bool
	unbodied              bool // a question without the client's body: whether it streams is not known
	maxTokens             int
	model, session        string
}

// ending is how the request of a story ended.
type ending struct {
	answerID, finish string
	firstToken       time.Time
	usage            sse.Usage
	counted          bool   // the engine reported its usage
	fault, words     string // the kind of our own fault that ended it, and its public words
	cause            string // whose fault the last failed attempt was
}

// stretch is a step's time, and why it failed.
type stretch struct {
	from, to      time.Time
	fault, failed string
}

// asking is how the prompt's ids were asked for.
type asking struct {
	stretch
	id            trace.SpanID // valid when they were
	source        string
	without       string // why there are none
	prompt, known int
}

// hop is one choice and the attempt that followed it.
type hop struct {
	choice stretch
	id     trace.SpanID // of the choice's span; the decision names it
	choosing
	leading
	sending
}

// choosing is what was decided.
type choosing struct {
	decided            bool // false: nothing was
	held, took, scored time.Duration
	// decidedBy is the router that chose, where it is another one; alone says why this one chose without the others.
	decidedBy, alone            string
	decision                    string
	policy                      decision.Policy
	reason                      decision.Reason
	attempt, candidates, prompt int
	best, overlap, rank         int
	margin, ttft                float64
	replica                     string
	// memory is the wait of a program's call for memory; nil for none.
	memory *decision.MemoryWait
}

// sending is the attempt; proxy, its span's id, is not valid when there was none.
type sending struct {
	proxy      trace.SpanID
	times      upstream.Times
	sent       stretch
	url, path  string
	method     string
	overhead   time.Duration
	firstToken time.Time
	status     int // of the replica's answer; 0 when there was none
	earlier    int // chunks that other attempts gave before
	chunks     int
	outcome    retry.Verdict // how the answer began
	broken     bool          // it began and did not come to its end
	release    stretch
	end        decision.End
}

var stories = sync.Pool{New: func() any { return &story{hops: make([]hop, 0, 2)} }}

// newStory begins the story of a request if the surface's span is recorded.
func newStory(tracer trace.Tracer, rq *request) *story {
	st := stories.Get().(*story)
	st.tracer, st.span, st.received = tracer, rq.span, rq.received
	return st
}

// Free implements span.Story.
func (st *story) Free() {
	clear(st.hops)
	*st = story{hops: st.hops[:0]}
	stories.Put(st)
}

// admit notes what the surface did before the router was asked: letting the caller in and
// reading the body.
func (st *story) admit(received time.Time) {
	if st != nil && !received.IsZero() {
		st.admitted = time.Since(received)
	}
}

// read notes that a body was read since began, or why it is not taken.
func (st *story) read(began time.Time, refused *apierror.Error) {
	if st == nil {
		return
	}
	st.body = stretch{from: began, to: time.Now()}
	if refused != nil {
		st.body.fault, st.body.failed = apierror.Name(refused.Reason), refused.Message
	}
}

// plan makes the id of a span of the story that must be named before it is drawn.
func (st *story) plan() trace.SpanID {
	if st == nil {
		return trace.SpanID{}
	}
	return span.Planned(st.span)
}

// tokens notes how the prompt's ids were asked for.
func (st *story) tokens(id trace.SpanID, began time.Time, took time.Duration, enc *tokenizer.Encoding, err error) {
	if st == nil {
		return
	}
	st.asked = asking{id: id, stretch: stretch{from: began, to: began.Add(took)}}
	if err != nil {
		if _, ok := errors.AsType[*tokenizer.ClientFault](err); ok {
			st.asked.fault, st.asked.failed = apierror.Name(apierror.TokenizeRefused), "refused by the tokenizer"
		}
		return
	}
	st.asked.source, st.asked.prompt, st.asked.known = string(enc.Source), enc.Tokens, enc.Known()
	if enc.Known() == 0 && enc.Reason != tokenizer.ReasonNotRead {
		st.asked.without = enc.Reason
	}
}

// choice notes a choice that was begun at began and ended at ended.
func (st *story) choice(id trace.SpanID, began, ended time.Time, made *chooser.Choice, err error) {
	if st == nil {
		return
	}
	st.hops = append(st.hops, hop{id: id, choice: stretch{from: began, to: ended}})
	h := &st.hops[len(st.hops)-1]
	d := decided(made, err)
	switch {
	case d == nil:
		h.choice.fault, h.choice.failed = "refused", "no decision"
		return
	case err != nil:
		h.choice.fault, h.choice.failed = apierror.Name(apierror.NoReplica), "every candidate is vetoed"
	}
	h.decided, h.decision, h.policy, h.reason, h.attempt = true, d.ID, d.Policy, d.Reason, d.Attempt
	h.held, h.took, h.scored, h.margin = d.Held, d.Took, d.Scored, d.Margin
	h.decidedBy, h.alone, h.memory = d.DecidedBy, d.Alone, d.Memory
	h.candidates, h.prompt, h.best = d.Listed()+d.Others+d.VetoedOthers, d.PromptTokens, d.BestOverlap()
	if pick := d.Pick(); pick != nil {
		h.replica, h.rank, h.overlap, h.ttft = string(pick.Replica), int(pick.Rank), overlap(d), d.PredictedTTFT()
	}
}

// direct notes that an attempt follows without a choice.
func (st *story) direct() {
	if st != nil {
		st.hops = append(st.hops, hop{})
	}
}

// hop is the one under way; nil when nothing is recorded.
func (st *story) hop() *hop {
	if st == nil || len(st.hops) == 0 {
		return nil
	}
	return &st.hops[len(st.hops)-1]
}

// keep returns where the notes of a hop are, while room is made for those of another one.
func (st *story) keep(h *hop) *hop {
	if st == nil {
		return h
	}
	for i := range st.hops {
		if &st.hops[i] == h {
			st.hops = slices.Grow(st.hops, 1)
			return &st.hops[i]
		}
	}
	return h
}

// attempt begins the notes of an attempt; nil when nothing is recorded. The methods of a hop take nil.
func (st *story) attempt(rq *request, a *attempt) *hop {
	h := st.hop()
	if h != nil {
		h.proxy, h.sent.from = st.plan(), a.chosen
		h.replica, h.rank, h.url, h.method = string(a.choice.Replica.ID), a.choice.Rank, a.choice.Replica.URL, rq.call.method()
		h.overhead = a.overhead
	}
	return h
}

// observe has the exchange with the replica note its times, and sends the replica the span's id.
func (h *hop) observe(out *upstream.Request) {
	if h != nil {
		out.Span, out.Times, h.path = h.proxy, &h.times, clip(out.Path, 256)
	}
}

// follows notes how much of the stream earlier attempts gave.
func (h *hop) follows(d *delivery) {
	if h != nil && d.attempt.point != nil {
		h.earlier = d.scan.Events()
	}
}

// answered notes how the answer began; resp is nil when there is none.
func (h *hop) answered(resp *upstream.Response, outcome retry.Verdict) {
	if h == nil {
		return
	}
	h.outcome = outcome
	if resp != nil {
		h.status = resp.Status
	}
}

// endedEarly notes that the answer ended early.
func (h *hop) endedEarly() {
	if h != nil {
		h.broken = true
	}
}

// over notes that the attempt is over, with f when it failed.
func (h *hop) over(rq *request, d *delivery, f *failure) {
	if h == nil {
		return
	}
	h.sent.to = time.Now()
	h.chunks = max(0, d.scan.Events()-h.earlier)
	if f != nil {
		h.sent.fault, h.sent.failed = f.outcome.String(), f.public.OwnWords()
		rq.story.failed = rq.story.failed || f.outcome != retry.ClientFault && f.outcome != retry.Canceled
	}
}

// released notes that the reservation was released at the end of the attempt.
func (h *hop) released(end decision.End) {
	if h != nil {
		h.release, h.end = stretch{from: h.sent.to, to: time.Now()}, end
	}
}

// leave hands the story to the surface's span; the request is over.
func (st *story) leave(rq *request, d *delivery, public *apierror.Error) {
	if st == nil {
		return
	}
	st.route, st.requestID, st.decisionID, st.firstToken = rq.call.Route, strings.Clone(rq.call.RequestID), rq.id, d.firstToken
	if rq.parsed != nil {
		st.understood, st.kind, st.streamed, st.maxTokens = true, rq.parsed.Prompt.Kind, rq.parsed.Stream, rq.parsed.MaxTokens
		st.unbodied = rq.question != nil && len(rq.question.Body) == 0
		st.session = strings.Clone(clip(rq.parsed.Session, 256))
		if rq.pool != nil && rq.pool.Model == rq.parsed.Model {
			st.model = rq.pool.Model
		} else {
			st.model = strings.Clone(clip(rq.parsed.Model, 128))
		}
	}
	if d.doubts.cause != retry.CauseNone {
		st.cause = d.doubts.cause.String()
	}
	st.answerID, st.finish = clip(d.scan.ResponseID(), 128), clip(d.scan.FinishReason(), 32)
	st.usage, st.counted = d.scan.Usage()
	if public != nil && public.Fault() == apierror.FaultOurs {
		st.fault, st.words, st.failed = apierror.Name(public.Reason), public.OwnWords(), true
	}
	span.Leave(st.span, st, st.failed)
}

// decided is the decision behind a choice, or behind its refusal; nil when none was made.
func decided(choice *chooser.Choice, err error) *decision.Decision {
	if choice != nil {
		return choice.Decision
	}
	if none, ok := errors.AsType[*chooser.NoReplica](err); ok {
		return none.Decision
	}
	return nil
}
