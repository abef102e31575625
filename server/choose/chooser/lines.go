package chooser

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// lines has a line for each model that requests have named.
type lines struct {
	queue     *holdqueue.Queue
	evaluator *evaluator
	byModel   sync.Map // model name to *line
	list      atomic.Pointer[[]*line]
	mu        sync.Mutex // serialises new lines
}

func newLines(queue *holdqueue.Queue, evaluator *evaluator) *lines {
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
	ln := newLine(model, l.queue, l.evaluator.newRemembered(model))
	l.byModel.Store(model, ln)
	list := append(append([]*line(nil), l.all()...), ln)
	l.list.Store(&list)
	return ln
}

// dice gives each decision a seed of its own.
type dice struct{ seed atomic.Uint64 }

// turn is the first turn of round-robin for a model.
func (d *dice) turn(model string) uint32 {
	return rand.New(rand.NewPCG(d.seed.Load(), uint64(len(model)))).Uint32() >> 1
}

func (d *dice) next() uint64 { return d.seed.Add(0x9e3779b97f4a7c15) }
