package admin

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Profiles serves Go's profiles under /debug/pprof/. They show what the process holds, prompts included.
	Profiles bool `yaml:"profiles"`
	// Console serves the page at /console.
	Console bool `yaml:"console"`
}

// DefaultConfig has the console on: the admin address is the loopback's unless the operator says otherwise.
func DefaultConfig() Config { return Config{Console: true} }

// Validate has nothing to refuse.
func (c Config) Validate() error { return nil }
