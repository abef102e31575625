package evaluate

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/past"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Model is the memory of the requests for one model. It is made by newRemembered.
type Model struct {
	// Name is the model as requests name it.
	Name    string
	Lengths answers.Lengths
	Trail   past.Trail
	Claims  *claims.Claims
	pools   layout.Cache
	// Streams is the number of requests that wait in the hold queue and whose first token counts.
	Streams atomic.Int64
	// Forks learns which calls are forked.
	Forks transfer.Forks
}

// NewModel returns the memory of a model before its first request.
func (e *Evaluator) NewModel(model string) *Model {
	r := &Model{Name: model, Claims: claims.New(e.Contexts)}
	r.Trail.Start(e.Dice.turn(model))
	return r
}

// Forget forgets a rank.
func (r *Model) Forget(slot replica.Slot) { r.Trail.Forget(slot) }

// Home names the pool that serves the model: models of one pool share its memory.
func (r *Model) Home() replica.Slot { return r.pools.Home() }

// Pressure counts the programs of the model. own leaves out programs that another router counts.
func (r *Model) Pressure(own bool, now time.Duration) (stats programs.Stats, replicas, needed int) {
	stats = r.Claims.Ledger.Stats(own, now)
	replicas = r.pools.Size()
	return stats, replicas, stats.Needed(replicas)
}
