package chooser

import (
	"sync/atomic"
)

// waitCounts count the requests that waited in the hold queue, the waits for memory, and the waiting requests whose caller left.
type waitCounts struct{ held, memory, left atomic.Int64 }
