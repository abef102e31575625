package router

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/resume"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// longAnswer is the limit of tokens from which on an answer in one piece is requested as a stream: a shorter one is soon written again.
const longAnswer = 64

// askStreamed prepares an unstreamed request to be sent as a stream, where another replica could continue its answer as text. It must be called after the
// body is final.
func (c *standIn) askStreamed(rq *request) {
	if !rq.set.ResumeUnstreamed || rq.parsed.Stream || rq.call.Route != openai.RouteChat && rq.call.Route != openai.RouteCompletions || rq.upload != nil || len(rq.pool.Replicas) < 2 {
		return
	}
	if limit := rq.parsed.AnswerLimit(); limit > 0 && limit < longAnswer {
		return
	}
	if c.streamed = openai.Streamed(rq.parsed, rq.pool.Served); c.streamed != nil && !rq.mayFollow() {
		c.streamed = nil
	}
}

// hasTools reports whether the request has tools.
func (rq *request) hasTools() bool { return len(rq.parsed.Raw("tools")) > len("[]") }

// suits reports whether an engine's form is one for the answer to the request. Without a parser that is one text. A parser is asked for the choices; the stop strings
// of the answer would have to be taken out of the tokens.
func (rq *request) suits(form *openai.WholeForm) bool {
	if form.Parsed() {
		stops, ok := rq.parsed.Stops()
		return ok && len(stops.Strings) == 0
	}
	return rq.way() == openai.WayText && !rq.hasTools()
}

// forms remembers in which form engines give answers in one piece. It is safe for concurrent use; it holds at most two entries for
// each replica.
type forms struct {
	mu sync.RWMutex
	of map[formOf]engineForm // guarded by mu
}

type formOf struct {
	replica replica.ID
	api     prompt.API
}

// engineForm is the form of one life of an engine; nil where the router cannot write it.
type engineForm struct {
	life    uint64
	version string
	form    *openai.WholeForm
}

// known returns the form of the replica's engine in its present life, nil when the router cannot write it.
func (f *forms) known(r *replica.Replica, api prompt.API) (form *openai.WholeForm, known bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	e, ok := f.of[formOf{r.ID, api}]
	return e.form, ok && e.life == r.Life && e.version == r.Version
}

// learn notes a form. When there are many more entries than replicas in view, it drops entries of other replicas.
func (f *forms) learn(r *replica.Replica, api prompt.API, form *openai.WholeForm, view *registry.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[formOf]engineForm{}
	}
	if len(f.of) > 4*len(view.Replicas)+64 {
		for of := range f.of {
			if _, there := view.Replica(of.replica); !there {
				delete(f.of, of)
			}
		}
	}
	f.of[formOf{r.ID, api}] = engineForm{life: r.Life, version: r.Version, form: form}
}

// formFor returns the form of the answer in one piece that an attempt is to have; nil where the engine is asked for it as the client asked.
func (e *sender) formFor(rq *request, a *attempt) *openai.WholeForm {
	if rq.streamed == nil || a.point != nil || !e.mayAskIDs(a) {
		return nil
	}
	form, _ := e.forms.known(a.choice.Replica, rq.parsed.Prompt.API)
	if form == nil || !rq.suits(form) {
		return nil
	}
	return form
}

// learnForm learns from an engine's own answer in which form it gives them, once in each life of the engine.
func (e *sender) learnForm(ctx context.Context, rq *request, on *replica.Replica, answer []byte) {
	api := rq.parsed.Prompt.API
	if _, known := e.forms.known(on, api); known {
		return
	}
	var form *openai.WholeForm
	switch {
	case api != prompt.APIChat:
		form = openai.ReadWholeForm(api, answer)
	case !hasTokenRoutes(on):
	case e.isParserless(ctx, rq, on):
		if form = openai.ReadWholeForm(api, answer); form == nil && rq.hasTools() {
			return // another answer shows it
		}
	case e.parsesWhole(ctx, rq, on):
		form = openai.ReadParsedForm(answer)
	}
	if ctx.Err() == nil {
		e.forms.learn(on, api, form, e.registry.Snapshot())
	}
}

// isParserless reports whether an engine has no parser for tools or reasoning, by its own word: such an engine makes a chat of token ids alone. A
// parser may take an answer apart in another way when it comes in pieces, so it is given the whole one.
func (e *sender) isParserless(ctx context.Context, rq *request, on *replica.Replica) bool {
	_, err := e.askParser(ctx, rq, on, pathDerender, openai.DerenderOne(rq.pool.Served))
	return err == nil
}

// parsesWhole reports whether an engine's parser makes choices of the ids of an answer to the request.
func (e *sender) parsesWhole(ctx context.Context, rq *request, on *replica.Replica) bool {
	finish := []byte(`"length"`)
	answer, err := e.askParser(ctx, rq, on, pathDerender, openai.DerenderWhole(rq.pool.Served, rq.body, []byte("[0]"), []uint32{0}, finish, nil))
	choices, _ := openai.ReadDerenderedWhole(answer, finish)
	return err == nil && choices != nil
}

// inside is an answer that the engine streams and the client gets in one piece: other replicas can continue it. Until it is whole, the client has
// nothing, so where no replica continues it the request is sent again.
type inside struct {
	*resumed
	// client is the delivery to the client; the resumed one has a delivery for the stream.
	client *delivery
	tries  *tries
	whole  *resume.Whole
	over   bool
}

// inside returns the answer in one piece that the attempt under way streams.
func (rs *resumer) inside(ctx context.Context, rq *request, t *tries, d *delivery) source {
	own, stream := *t, &delivery{attempt: d.attempt, doubts: d.doubts}
	stream.scan.Reset(rq.parsed.Prompt.API, true)
	first := newReply(rq, stream)
	s := &resumed{resumer: rs, rq: rq, tries: &own, d: stream, reply: first, follower: first.a.follower}
	return &inside{resumed: s, client: d, tries: t, whole: first.a.whole}
}

// next implements source.
func (s *inside) next(ctx context.Context) ([]byte, error) {
	if s.over {
		return nil, io.EOF
	}
	for {
		piece, err := s.resumed.next(ctx)
		if isEnd(err) {
			break
		}
		if err == nil {
			err = s.take(piece)
		}
		if err != nil {
			return nil, s.failed(err)
		}
	}
	if err := s.parse(ctx); err != nil {
		return nil, s.failed(err)
	}
	answer, err := s.whole.Answer(s.d.attempts > 0)
	if err != nil {
		return nil, s.failed(err)
	}
	s.over = true
	s.settle()
	resp := s.client.attempt.resp
	resp.Header.Set("Content-Type", "application/json")
	resp.ContentLength = int64(len(answer))
	return answer, nil
}

// parse has an engine's parser take the answer apart, where one does: the engine that has written the end, or another one.
func (s *inside) parse(ctx context.Context) error {
	if !s.whole.Parsed() {
		return nil
	}
	question := s.whole.Question(s.rq.pool.Served, s.rq.body)
	if question == nil {
		return resume.ErrNotWhole
	}
	e := s.attempts.engines
	list := []*replica.Replica{s.reply.a.choice.Replica}
	for _, o := range e.readers(s.rq, s.reply.a) {
		if hasTokenRoutes(o) {
			list = append(list, o)
		}
	}
	err := error(nil)
	for _, on := range list[:min(len(list), textTries)] {
		var answer []byte
		if answer, err = e.askParser(ctx, s.rq, on, pathDerender, question); err == nil {
			return s.whole.Take(answer, s.rq.hasTools())
		}
	}
	return err
}

// take takes a piece of the stream.
func (s *inside) take(piece []byte) error {
	a := s.d.attempt
	if s.d.scan.Feed(piece); !s.d.begun && s.d.scan.ContentEvents() > 0 {
		if s.d.begun = a.choice.Begin(); !s.d.begun {
			return errStalled
		}
	}
	return s.whole.Feed(piece)
}

// settle leaves the attempt under way, and the shared state of the attempts, to the client's delivery.
func (s *inside) settle() {
	if s.client.attempt = s.d.attempt; s.client.attempt == nil { // no replica was chosen for the rest
		s.client.attempt = s.reply.a
	}
	s.client.attempts += s.d.attempts
	s.client.doubts = s.d.doubts
	s.tries.ask.Attempt, s.tries.ask.Exclude = s.resumed.tries.ask.Attempt, s.resumed.tries.ask.Exclude
	s.tries.passed, s.tries.before, s.tries.deaths = s.resumed.tries.passed, s.resumed.tries.before, s.resumed.tries.deaths
}

// failed is the failure of an answer that has not come whole.
func (s *inside) failed(err error) error {
	s.settle()
	if errors.Is(err, resume.ErrNotWhole) && !s.whole.Failed() {
		e := s.attempts.engines
		e.forms.learn(s.client.attempt.choice.Replica, s.rq.parsed.Prompt.API, nil, e.registry.Snapshot())
	}
	if f, ok := errors.AsType[*failure](err); ok && s.tries.deaths.named {
		poisoned := *f
		poisoned.poisoned = true
		return &poisoned
	}
	return err
}
