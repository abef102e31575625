package evaluate

import (
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// matching is the index's answer about a prompt.
type matching struct {
	sizes    []int // distinct block sizes of the pool
	Overlaps []kvindex.Overlap
	Known    []kvindex.Overlap // used instead of asking the index, when not nil
}
