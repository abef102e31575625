package attempt

import (
	"context"
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

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

// suits reports whether an engine's form is one for the answer to the request. Without a parser that is one text. A parser is asked for the choices; the stop strings
// of the answer would have to be taken out of the tokens.
func suits(rq *intake.Request, form *openai.WholeForm) bool {
	if form.Parsed() {
		stops, ok := rq.Parsed.Stops()
		return ok && len(stops.Strings) == 0
	}
	return rq.Way() == openai.WayText && !rq.HasTools()
}

// formFor returns the form of the answer in one piece that an attempt is to have; nil where the engine is asked for it as the client asked.
func (e *sender) formFor(rq *intake.Request, a *Attempt) *openai.WholeForm {
	if rq.Streamed == nil || a.point != nil || !e.mayAskIDs(a) {
		return nil
	}
	form, _ := e.forms.known(a.Choice.Replica, rq.Parsed.Prompt.API)
	if form == nil || !suits(rq, form) {
		return nil
	}
	return form
}

// LearnForm learns from an engine's own answer in which form it gives them, once in each life of the engine.
func (e *sender) LearnForm(ctx context.Context, rq *intake.Request, on *replica.Replica, answer []byte) {
	api := rq.Parsed.Prompt.API
	if _, known := e.forms.known(on, api); known {
		return
	}
	var form *openai.WholeForm
	switch {
	case api != prompt.APIChat:
		form = openai.ReadWholeForm(api, answer)
	case !intake.HasTokenRoutes(on):
	case e.isParserless(ctx, rq, on):
		if form = openai.ReadWholeForm(api, answer); form == nil && rq.HasTools() {
			return // another answer shows it
		}
	case e.parsesWhole(ctx, rq, on):
		form = openai.ReadParsedForm(answer)
	}
	if ctx.Err() == nil {
		e.forms.learn(on, api, form, e.Registry.Snapshot())
	}
}

// isParserless reports whether an engine has no parser for tools or reasoning, by its own word: such an engine makes a chat of token ids alone. A
// parser may take an answer apart in another way when it comes in pieces, so it is given the whole one.
func (e *sender) isParserless(ctx context.Context, rq *intake.Request, on *replica.Replica) bool {
	_, err := e.AskDerender(ctx, rq, on, openai.DerenderOne(rq.Pool.Served))
	return err == nil
}

// parsesWhole reports whether an engine's parser makes choices of the ids of an answer to the request.
func (e *sender) parsesWhole(ctx context.Context, rq *intake.Request, on *replica.Replica) bool {
	finish := []byte(`"length"`)
	answer, err := e.AskDerender(ctx, rq, on, openai.DerenderWhole(rq.Pool.Served, rq.Body, []byte("[0]"), []uint32{0}, finish, nil))
	choices, _ := openai.ReadDerenderedWhole(answer, finish)
	return err == nil && choices != nil
}

// NoForm notes that the router cannot write the answers of a replica in one piece.
func (e *sender) NoForm(on *replica.Replica, api prompt.API) {
	e.forms.learn(on, api, nil, e.Registry.Snapshot())
}
