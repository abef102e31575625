package memlimit

import (
	"errors"
	"math"
	"runtime/debug"
	"testing"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

func TestTheLimitIsTheNearestOne(t *testing.T) {
	const gib = 1 << 30
	gives := func(bytes uint64, err error) func() (uint64, error) {
		return func() (uint64, error) { return bytes, err }
	}
	none := gives(0, errors.New("none"))
	for name, c := range map[string]struct {
		set            int64
		group, machine func() (uint64, error)
		want           Limit
	}{
		"a setting":                   {gib, gives(2*gib, nil), gives(16*gib, nil), Limit{gib, "setting"}},
		"a container":                 {0, gives(2*gib, nil), gives(16*gib, nil), Limit{2 * gib, "control group"}},
		"a group without a limit":     {0, gives(math.MaxUint64, nil), gives(16*gib, nil), Limit{12 * gib, "machine"}},
		"a group of a whole machine":  {0, gives(16*gib, nil), gives(16*gib, nil), Limit{12 * gib, "machine"}},
		"no group":                    {0, none, gives(16*gib, nil), Limit{12 * gib, "machine"}},
		"a group on an odd machine":   {0, gives(2*gib, nil), none, Limit{2 * gib, "control group"}},
		"nothing is known":            {0, none, none, Limit{}},
		"nothing of any use is known": {0, gives(0, nil), gives(0, nil), Limit{}},
	} {
		if got := find(Config{MaxBytes: quantity.Bytes(c.set)}, c.group, c.machine); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTheRuntimeIsHeldUnlessTheEnvironmentDoes(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	Limit{Bytes: 1000 << 20}.Hold([]string{"GOMEMLIMIT=1GiB"})
	Limit{Bytes: 1000 << 20}.Hold([]string{"GOMEMLIMIT=off"})
	Limit{}.Hold(nil)
	if got := debug.SetMemoryLimit(-1); got != before {
		t.Errorf("the limit is %d, want %d as before", got, before)
	}
	Limit{Bytes: 1000 << 20}.Hold([]string{"HOME=/", "GOMEMLIMIT="}) // empty is unset, for the runtime too
	if got := debug.SetMemoryLimit(-1); got != 900<<20/10*10 {
		t.Errorf("the limit is %d, want 900 MiB", got)
	}
}

func TestSmallLimitsAreRefused(t *testing.T) {
	for bytes, ok := range map[quantity.Bytes]bool{0: true, least: true, least - 1: false, -1: false, 1 << 40: true} {
		if err := (Config{MaxBytes: bytes}).Validate(); (err == nil) != ok {
			t.Errorf("%d: %v", bytes, err)
		}
	}
}
