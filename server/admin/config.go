package admin

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Profiles serves Go's profiles under /debug/pprof/.
	Profiles bool `yaml:"profiles"`
	// Console serves the page at /console.
	Console bool `yaml:"console"`
}

// DefaultConfig has both on: the admin address is the loopback's unless the operator says otherwise.
func DefaultConfig() Config { return Config{Profiles: true, Console: true} }

// Validate has nothing to refuse.
func (c Config) Validate() error { return nil }
