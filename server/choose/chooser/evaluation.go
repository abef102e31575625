package chooser

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// evaluation is the state of the ranks for one request at one moment. Its memory is reused.
type evaluation struct {
	d        decision.Decision
	versions []uint64     // of each candidate's load when it was read
	pool     *layout.Pool // each candidate's rank in it has the candidate's index
	ranks    []*rank.Rank // of each candidate; nil for one that is not known
	matching matching
	slots    []replica.Slot
	ids      []replica.ID
	shadow   []decision.Candidate
	listing  listing
	packer   decision.Packer
	readings readings
	// held is set when the request may wait in the hold queue; since is when the offered request began to wait (zero: it has not).
	held    bool
	whole   bool // nothing but the end of the answer counts, for the requests that wait, too
	since   time.Time
	program callForMemory
	splitting
}

// owner is the replica of a candidate.
func (s *evaluation) owner(i int) *replica.Replica { return s.pool.Replicas[s.pool.Ranks[i].Owner] }
