package evaluate

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/adapters"
	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// Evaluator finds all that is known of the ranks for a request.
type Evaluator struct {
	Clock      *clock.Clock
	Settings   *settings.Current
	Ranks      *rank.Table
	Index      *kvindex.Index
	Book       *load.Book
	Reports    reports.Reports // nil: none
	Gate       Gate
	Queue      *holdqueue.Queue
	Memory     *past.Memory
	Contexts   *programs.Ranks
	Comparison *compare.Comparison
	Residence  *answers.Residence
	Lanes      *transfer.Lanes
	Adapters   *adapters.Fleet
	Copies     *transfer.Copies
	SplitAbove *selector.Threshold // nil: by price
	Dice       *Dice
	// Bias multiplies the prefill times that were learned.
	Bias float64
	// Unreachable counts the requests whose targets no rank can keep.
	Unreachable *atomic.Int64
	spare       sync.Pool
}

// Borrow returns memory for an evaluation of a request that began to wait at since, zero for one that has not. It goes back with giveBack.
func (e *Evaluator) Borrow(since time.Time) *Evaluation {
	s, ok := e.spare.Get().(*Evaluation)
	if !ok {
		s = new(Evaluation)
	}
	s.Since, s.Ends = since, e.Copies.Ends()
	return s
}

// GiveBack ends the use of an evaluation.
func (e *Evaluator) GiveBack(s *Evaluation) { e.spare.Put(s) }

// sized returns list with n elements, which may have any value.
func sized[E any](list []E, n int) []E { return slices.Grow(list[:0], n)[:n] }
