package waiting

import (
	"sync/atomic"
)

// Counts count the requests that waited in the hold queue, the waits for memory, and the waiting requests whose caller left.
type Counts struct{ Held, Memory, Left atomic.Int64 }
