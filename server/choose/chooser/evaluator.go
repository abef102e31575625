package chooser

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/clock"
	"github.com/kvpilot/kvpilot/server/choose/chooser/compare"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/choose/chooser/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser/settings"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// evaluator finds all that is known of the ranks for a request.
type evaluator struct {
	clock      *clock.Clock
	settings   *settings.Current
	ranks      *rank.Table
	index      *kvindex.Index
	book       *load.Book
	reports    reports.Reports // nil: none
	gate       Gate
	queue      *holdqueue.Queue
	memory     *memory
	comparison *compare.Comparison
	residence  *answers.Residence
	lanes      *transfer.Lanes
	splitAbove *selector.Threshold // nil: by price
	dice       *dice
	// bias multiplies the prefill times that were learned.
	bias float64
	// unreachable counts the requests whose targets no rank can keep.
	unreachable *atomic.Int64
	spare       sync.Pool
}

// borrow returns memory for an evaluation of a request that began to wait at since, zero for one that has not. It goes back with giveBack.
func (e *evaluator) borrow(since time.Time) *evaluation {
	s, ok := e.spare.Get().(*evaluation)
	if !ok {
		s = new(evaluation)
	}
	s.since = since
	return s
}

func (e *evaluator) giveBack(s *evaluation) { e.spare.Put(s) }

// sized returns list with n elements, which may have any value.
func sized[E any](list []E, n int) []E { return slices.Grow(list[:0], n)[:n] }
