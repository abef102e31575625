package chooser

import (
	"sync/atomic"
)

// waitCounts count the requests that waited in the hold queue, those that waited for memory, and those whose caller left.
type waitCounts struct{ held, memory, left atomic.Int64 }
