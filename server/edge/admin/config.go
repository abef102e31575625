package admin

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Profiles serves Go's profiles under /debug/pprof/, to the role admin. They show what the process holds, prompts included.
	Profiles bool `yaml:"profiles"`
	// Console serves the page at /console, to the role observe.
	Console bool `yaml:"console"`
	// KeyedMetrics and KeyedHealth ask for the role observe at /metrics, and at /healthz, /livez and /readyz, where callers
	// need credentials.
	KeyedMetrics bool `yaml:"keyed_metrics"`
	KeyedHealth  bool `yaml:"keyed_health"`
}

// DefaultConfig has the console on: the admin address is the loopback's unless the operator says otherwise.
func DefaultConfig() Config { return Config{Console: true} }

// Validate has nothing to refuse.
func (c Config) Validate() error { return nil }
