package chooser

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct{}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{} }

// Validate reports every bad field at once.
func (c Config) Validate() error { return nil }
