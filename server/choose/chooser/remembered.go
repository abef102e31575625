package chooser

import (
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/answers"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// remembered is the memory of the requests for one model. It is made by newRemembered.
type remembered struct {
	lengths answers.Lengths
	trail   trail
	claims  *claims
	pools   layout.Cache
	// streams is the number of requests that wait in the hold queue and whose first token counts.
	streams atomic.Int64
}

// newRemembered returns the memory of a model before its first request.
func (e *evaluator) newRemembered(model string) *remembered {
	r := &remembered{claims: newClaims()}
	r.trail.start(e.dice.turn(model))
	return r
}

// forget forgets a rank.
func (r *remembered) forget(slot replica.Slot) {
	r.trail.forget(slot)
	r.claims.ledger.Remove(slot)
}

// pressure counts the programs of the model. own leaves out programs that another router counts.
func (r *remembered) pressure(own bool, now time.Duration) (stats programs.Stats, replicas, needed int) {
	stats = r.claims.ledger.Stats(own, now)
	replicas = r.pools.Size()
	return stats, replicas, stats.Needed(replicas)
}
