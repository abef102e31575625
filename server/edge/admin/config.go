package admin

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Profiles serves Go's profiles under /debug/pprof/, to the role admin. They reveal the process's memory, prompts
	// included.
	Profiles bool `yaml:"profiles"`
	// Console serves the page at /console, and below /kvpilot/v1/ the RPCs that it reads, to the role observe.
	Console bool `yaml:"console"`
	// KeyedMetrics requires the role observe at /metrics, where callers need credentials.
	KeyedMetrics bool `yaml:"keyed_metrics"`
	// KeyedHealth requires the role observe at /healthz, /livez and /readyz, where callers need credentials.
	KeyedHealth bool `yaml:"keyed_health"`
}

// DefaultConfig has the console on: the admin address is the loopback's unless the operator says otherwise.
func DefaultConfig() Config { return Config{Console: true} }

// Validate accepts every Config.
func (c Config) Validate() error { return nil }
