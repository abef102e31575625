package decision

import "fmt"

// SpeedSource says where the speed of a rank comes from.
type SpeedSource uint8

const (
	// SpeedPrior is the built-in guess: nothing was seen.
	SpeedPrior SpeedSource = iota
	// SpeedEngine is the engine's own account of its past.
	SpeedEngine
	// SpeedKind is what ranks of the same kind have learned.
	SpeedKind
	// SpeedLearned is the rank's own samples.
	SpeedLearned
	// SpeedDistrusted is the median of the kind in place of what the rank learned, because the
	// rank's predictions have been wrong for a while.
	SpeedDistrusted
)

var speedSources = [...]string{"prior", "engine", "kind", "learned", "distrusted"}

// String gives the source in the form that metrics, logs and JSON use.
func (s SpeedSource) String() string { return speedSources[s] }

// MarshalText writes the source's name.
func (s SpeedSource) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a source's name.
func (s *SpeedSource) UnmarshalText(text []byte) error {
	for i, name := range speedSources {
		if name == string(text) {
			*s = SpeedSource(i)
			return nil
		}
	}
	return fmt.Errorf("unknown source of speed %q", text)
}
