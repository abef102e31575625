package decision

import "time"

// Lookup is the question to a directory, a service outside the router, where the beginning of a prompt lies below the engines' GPUs.
type Lookup struct {
	// Source is the kind of the service, Result the result in one word.
	Source, Result string
	// Took is the time that the choice waited for it.
	Took time.Duration
}
