package waiting

import (
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/chooser/evaluate"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// lines has a line for each model that requests have named.
type lines struct {
	queue     *holdqueue.Queue
	evaluator *evaluate.Evaluator
	byModel   sync.Map // model name to *line
	list      atomic.Pointer[[]*line]
	mu        sync.Mutex // serialises new lines
}

func newLines(queue *holdqueue.Queue, evaluator *evaluate.Evaluator) *lines {
	l := &lines{queue: queue, evaluator: evaluator}
	l.list.Store(&[]*line{})
	return l
}

// all returns the lines. The list never changes.
func (l *lines) all() []*line { return *l.list.Load() }

// of returns the line of a model, made at first use.
func (l *lines) of(model string) *line {
	if ln, ok := l.byModel.Load(model); ok {
		return ln.(*line)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln, ok := l.byModel.Load(model); ok {
		return ln.(*line)
	}
	ln := newLine(l.queue, l.evaluator.NewModel(model))
	l.byModel.Store(model, ln)
	list := append(append([]*line(nil), l.all()...), ln)
	l.list.Store(&list)
	return ln
}
