package decision

// SpeedSource says where the speed of a rank comes from.
type SpeedSource uint8

const (
	// SpeedPrior is the built-in guess: nothing was seen.
	SpeedPrior SpeedSource = iota
	// SpeedEngine is the engine's own account of its past.
	SpeedEngine
	// SpeedKind is the speed learned by ranks of the same kind.
	SpeedKind
	// SpeedLearned is the rank's own samples.
	SpeedLearned
	// SpeedDistrusted is the median of the kind in place of the rank's own speed, because the
	// rank's predictions have been wrong for a while.
	SpeedDistrusted
)

var speedSources = [...]string{"prior", "engine", "kind", "learned", "distrusted"}

// String gives the source in the form that metrics, logs and JSON use.
func (s SpeedSource) String() string { return speedSources[s] }
