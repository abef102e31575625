package story

import (
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/retry"
	"github.com/kvpilot/kvpilot/server/wire/sse"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Story has the times and results of a request's steps (draw.go makes spans of them).
type Story struct {
	tracer trace.Tracer
	span   trace.Span // the surface's

	admitted time.Duration // since received; 0 when the surface did not say when it began
	received time.Time
	body     stretch
	asked    asking
	hops     []Hop
	failed   bool // an attempt or the request, on our side: the trace is kept whatever the sampler chose

	Subject
	Ending
	fault, words string // the kind of our own fault that ended it, and its public words
}

// Subject is the request of a story.
type Subject struct {
	Route                 openai.Route
	RequestID, DecisionID string
	Understood            bool // the body was read: the fields below are known
	Kind                  prompt.Kind
	Streamed              bool
	Unbodied              bool // a question without the client's body: whether it streams is not known
	MaxTokens             int
	Model, Session        string
}

// Ending is how the request of a story ended.
type Ending struct {
	AnswerID, Finish string
	FirstToken       time.Time
	Usage            sse.Usage
	Counted          bool   // the engine reported its usage
	Cause            string // the party at fault for the last failed attempt
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

// Hop is one choice and the attempt that followed it.
type Hop struct {
	choice stretch
	id     trace.SpanID // of the choice's span; the decision names it
	choosing
	Leading
	sending
}

// choosing is the decision.
type choosing struct {
	decided            bool // false: nothing was
	held, took, scored time.Duration
	// decidedBy is the router that chose, where it is another one; alone says why this one chose without the others.
	decidedBy, alone            string
	decision                    string
	policy                      decision.Policy
	reason                      decision.Reason
	attempt, candidates, prompt int
	rank                        int
	margin, ttft                float64
	replica                     string
	// memory is the wait of a program's call for memory; nil for none.
	memory *decision.MemoryWait
	// copied is the copy of the prompt's beginning for which it waited; nil for none.
	copied *decision.Way
	found
}

// found is the part of the prompt that the ranks hold, in tokens: the longest, the chosen one's, and its parts in host memory and in a store, to
// be loaded in so many seconds.
type found struct {
	best, overlap, host, store int
	load                       float64
	lookup                     *decision.Lookup // nil: no directory was asked
}

// below are the attributes of the part that is loaded, and of the question to a directory about it.
func (f *found) below(attrs []span.KeyValue) []span.KeyValue {
	if l := f.lookup; l != nil {
		attrs = append(attrs, span.Directory.String(l.Source), span.DirectoryResult.String(l.Result), span.DirectoryFor.Float64(l.Took.Seconds()))
	}
	if f.host+f.store == 0 {
		return attrs
	}
	return append(attrs, span.HostTokens.Int(f.host), span.StoreTokens.Int(f.store), span.PredictedLoad.Float64(f.load))
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

var stories = sync.Pool{New: func() any { return &Story{hops: make([]Hop, 0, 2)} }}

// Begin begins the story of a request that was received at a time, below the surface's span.
func Begin(tracer trace.Tracer, below trace.Span, received time.Time) *Story {
	st := stories.Get().(*Story)
	st.tracer, st.span, st.received = tracer, below, received
	return st
}

// Free implements span.Story.
func (st *Story) Free() {
	clear(st.hops)
	*st = Story{hops: st.hops[:0]}
	stories.Put(st)
}

// Admit notes the surface's time before the router was asked: it let the caller in and read the body.
func (st *Story) Admit(received time.Time) {
	if st != nil && !received.IsZero() {
		st.admitted = time.Since(received)
	}
}

// Read notes that a body was read since began, or why it is not taken.
func (st *Story) Read(began time.Time, refused *apierror.Error) {
	if st == nil {
		return
	}
	st.body = stretch{from: began, to: time.Now()}
	if refused != nil {
		st.body.fault, st.body.failed = apierror.Name(refused.Reason), refused.Message
	}
}

// Plan makes the id of a span of the story that must be named before it is drawn.
func (st *Story) Plan() trace.SpanID {
	if st == nil {
		return trace.SpanID{}
	}
	return span.Planned(st.span)
}

// Tokens notes how the prompt's ids were asked for.
func (st *Story) Tokens(id trace.SpanID, began time.Time, took time.Duration, enc *tokenizer.Encoding, err error) {
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

// Choice notes a choice that was begun at began and ended at ended.
func (st *Story) Choice(id trace.SpanID, began, ended time.Time, made *chooser.Choice, err error) {
	if st == nil {
		return
	}
	st.hops = append(st.hops, Hop{id: id, choice: stretch{from: began, to: ended}})
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
	h.decidedBy, h.alone, h.memory, h.copied = d.DecidedBy, d.Alone, d.Memory, d.Copied()
	h.lookup = d.Lookup
	h.candidates, h.prompt, h.best = d.Listed()+d.Others+d.VetoedOthers, d.PromptTokens, d.BestOverlap()
	if pick := d.Pick(); pick != nil {
		h.replica, h.rank, h.overlap, h.ttft = string(pick.Replica), int(pick.Rank), d.Expected(), d.PredictedTTFT()
		if d.Split() == nil {
			h.host, h.store, h.load = int(pick.CPU), int(pick.Disk), pick.Load
		}
	}
}

// Direct notes that an attempt follows without a choice.
func (st *Story) Direct() {
	if st != nil {
		st.hops = append(st.hops, Hop{})
	}
}

// hop is the hop under way; nil when nothing is recorded.
func (st *Story) hop() *Hop {
	if st == nil || len(st.hops) == 0 {
		return nil
	}
	return &st.hops[len(st.hops)-1]
}

// Keep returns where the notes of a hop are, while room is made for another one.
func (st *Story) Keep(h *Hop) *Hop {
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

// Attempt is an attempt at its beginning.
type Attempt struct {
	Chosen   time.Time
	Replica  *replica.Replica
	Rank     int
	Method   string
	Overhead time.Duration
}

// Attempt begins the notes of an attempt; nil when nothing is recorded. The methods of a Hop take nil.
func (st *Story) Attempt(a Attempt) *Hop {
	h := st.hop()
	if h != nil {
		h.proxy, h.sent.from = st.Plan(), a.Chosen
		h.replica, h.rank, h.url, h.method = string(a.Replica.ID), a.Rank, a.Replica.URL, a.Method
		h.overhead = a.Overhead
	}
	return h
}

// Observe has the exchange with the replica note its times, and sends the replica the span's id. path is the request's, or its beginning.
func (h *Hop) Observe(out *upstream.Request, path string) {
	if h != nil {
		out.Span, out.Times, h.path = h.proxy, &h.times, path
	}
}

// Sends notes a request that another party sends to the replica.
func (h *Hop) Sends(path string, at time.Time) {
	if h != nil {
		h.path, h.times.Began = path, at
	}
}

// Span is the id of the attempt's span, not valid when nothing is recorded.
func (h *Hop) Span() trace.SpanID {
	if h == nil {
		return trace.SpanID{}
	}
	return h.proxy
}

// Follows notes how many events of the stream earlier attempts gave.
func (h *Hop) Follows(events int) {
	if h != nil {
		h.earlier = events
	}
}

// FirstToken notes when the first content came.
func (h *Hop) FirstToken(at time.Time) {
	if h != nil {
		h.firstToken = at
	}
}

// Head notes the head of an answer to a request that another party sent.
func (h *Hop) Head(outcome retry.Verdict, status int) {
	if h != nil {
		h.times.Head, h.outcome, h.status = time.Now(), outcome, status
	}
}

// Answered notes how the answer began; resp is nil when there is none.
func (h *Hop) Answered(resp *upstream.Response, outcome retry.Verdict) {
	if h == nil {
		return
	}
	h.outcome = outcome
	if resp != nil {
		h.status = resp.Status
	}
}

// EndedEarly notes that the answer ended early.
func (h *Hop) EndedEarly() {
	if h != nil {
		h.broken = true
	}
}

// Over notes that the attempt is over, after so many events of the stream.
func (h *Hop) Over(events int) {
	if h != nil {
		h.sent.to = time.Now()
		h.chunks = max(0, events-h.earlier)
	}
}

// Failed notes why an attempt failed.
func (st *Story) Failed(h *Hop, outcome retry.Verdict, words string) {
	if h != nil {
		h.sent.fault, h.sent.failed = outcome.String(), words
		st.failed = st.failed || outcome != retry.ClientFault && outcome != retry.Canceled
	}
}

// Released notes that the reservation was released at the end of the attempt.
func (h *Hop) Released(end decision.End) {
	if h != nil {
		h.release, h.end = stretch{from: h.sent.to, to: time.Now()}, end
	}
}

// Leave hands the story to the surface's span; the request is over. public is the client's error, nil for none.
func (st *Story) Leave(of Subject, end Ending, public *apierror.Error) {
	st.Subject, st.Ending = of, end
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
