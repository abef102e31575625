package enginestats

// Alone is a Load and a Listener that do nothing.
type Alone = alone
