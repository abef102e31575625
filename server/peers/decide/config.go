package decide

import "time"

// Config bounds a frontend's waits. Package members has the settings, and checks them.
type Config struct {
	// Patience is how long a decider may leave a question without any answer. Then the router decides alone. A decider that says
	// nothing at all for five times as long counts as silent, and another one is asked.
	Patience time.Duration
	// Grace is how long the bookings of a router that is silent or gone remain.
	Grace time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Patience: 50 * time.Millisecond, Grace: 3 * time.Second} }
