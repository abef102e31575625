package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// splitting has the state with which an evaluation prices the ways of a request. Its memory is reused.
type splitting struct {
	// able is set when the request may be split among the pool's ranks.
	able    bool
	pairing selector.Pairing
	members []selector.Member // the pairing's, where a rank is left out
	ways    [3]decision.Way
	copying selector.Copying
	// Pull is the way by a copy of the prompt's beginning, where that costs least; Pulls is set then.
	Pull  selector.Pull
	Pulls bool
}
