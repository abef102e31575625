package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/claims"
	"github.com/kvpilot/kvpilot/server/choose/chooser/layout"
	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Evaluation is the state of the ranks for one request at one moment. Its memory is reused.
type Evaluation struct {
	Decision decision.Decision
	Versions []uint64     // of each candidate's load when it was read
	Pool     *layout.Pool // each candidate's rank in it has the candidate's index
	ranks    []*rank.Rank // of each candidate; nil for one that is not known
	Matching matching
	slots    []replica.Slot
	ids      []replica.ID
	shadow   []decision.Candidate
	listing  listing
	packer   decision.Packer
	Readings readings
	// Held is set when the request may wait in the hold queue; since is when the offered request began to wait (zero: it has not).
	Held    bool
	Calm    bool // a rank had better decode first: nothing but the end of the answer counts, for the requests that wait, too
	Since   time.Time
	Ends    uint64 // copies that had ended when the evaluation began
	Program claims.Call
	splitting
}

// Owner is the replica of a candidate.
func (s *Evaluation) Owner(i int) *replica.Replica { return s.Pool.Replicas[s.Pool.Ranks[i].Owner] }
