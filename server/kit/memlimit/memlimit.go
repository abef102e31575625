// Package memlimit finds how much memory the process may take, and holds the Go runtime to it.
package memlimit

import (
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.opentelemetry.io/otel/metric"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/instruments"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings of an operator.
type Config struct {
	// MaxBytes is the memory that the router may take, at least 256 MiB. Zero: the limit of its control group (the
	// memory limit of a container), or without one three quarters of the machine's memory. The limits of parts that are not set are
	// shares of it, and larger ones are lowered: docs/operations.md has them.
	MaxBytes quantity.Bytes `yaml:"max_bytes"`
}

// least is the smallest limit that a router can work with.
const least = 256 << 20

// Validate reports a limit that is too small to work with.
func (c Config) Validate() error {
	return check.That(c.MaxBytes == 0 || c.MaxBytes >= least, "max_bytes", "must be 0 or at least %v, not %v", quantity.Bytes(least), c.MaxBytes)
}

// Limit is the memory that the process may take. The zero Limit is none.
type Limit struct {
	Bytes int64
	// From is where the limit comes from: setting, control group or machine.
	From string
}

// String is the limit for people.
func (l Limit) String() string {
	if l.Bytes == 0 {
		return "unlimited"
	}
	return fmt.Sprintf("%.4g GiB (%s)", float64(l.Bytes)/(1<<30), l.From)
}

// Find returns the limit of this process.
func Find(c Config) Limit { return find(c, memlimit.FromCgroup, memlimit.FromSystem) }

func find(c Config, group, machine memlimit.Provider) Limit {
	if c.MaxBytes > 0 {
		return Limit{int64(c.MaxBytes), "setting"}
	}
	bytes, err := machine()
	whole := Limit{}
	if err == nil && bytes > 0 && bytes < math.MaxInt64 {
		whole = Limit{int64(bytes / 4 * 3), "machine"}
	}
	// A group without a limit has the largest number there is, or none.
	if of, err := group(); err == nil && of > 0 && of < math.MaxInt64 && (whole.Bytes == 0 || of/4*3 < uint64(whole.Bytes)) {
		return Limit{int64(of), "control group"}
	}
	return whole
}

// Hold makes the Go runtime collect garbage as often as the limit needs, unless GOMEMLIMIT is set in env, which has
// os.Environ's form: "off" is set, empty is not, as the runtime reads it. It is for the whole process.
func (l Limit) Hold(env []string) {
	const name = "GOMEMLIMIT="
	if l.Bytes > 0 && !slices.ContainsFunc(env, func(v string) bool { return len(v) > len(name) && strings.HasPrefix(v, name) }) {
		debug.SetMemoryLimit(l.Bytes / 10 * 9)
	}
}

// Show makes the limit a metric, which dashboards hold process_resident_memory_bytes against.
func (l Limit) Show(meters metric.MeterProvider) {
	var m struct {
		Limit metric.Int64ObservableGauge `metric:"kvpilot.memory.limit" unit:"By" by:"from" help:"Memory that the process may take, by where the limit is from: setting, control group or machine."`
	}
	from := instruments.Label("from", l.From)
	instruments.Declare(meters, "server/kit/memlimit", &m).Observe(func(o metric.Observer) {
		if l.Bytes > 0 {
			o.ObserveInt64(m.Limit, l.Bytes, from)
		}
	})
}
