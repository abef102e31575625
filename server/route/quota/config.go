package quota

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Default names the entry of tenants that have none of their own, and of callers without a name.
const Default = "default"

// Unlimited, in place of a limit, sets none where the entry called default has one.
const unlimited = -1

// Config holds the tenants' limits by name. The entry called default is for all others, and gives what an entry
// leaves out.
type Config map[string]Limits

// Limits is what an operator may set for a tenant. Zero takes the value of the entry called default; -1 is no limit.
type Limits struct {
	// RequestsPerSecond limits the rate at which requests begin, in the long run.
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	// RequestBurst is the number of requests that may begin at once after a pause. Unset: as many as in one second,
	// and at least one.
	RequestBurst int `yaml:"request_burst"`
	// TokensPerMinute limits the rate of tokens, of prompts and answers, in the long run.
	TokensPerMinute int `yaml:"tokens_per_minute"`
	// TokenBurst is the number of tokens that may be used at once after a pause. Unset: those of one minute.
	TokenBurst int `yaml:"token_burst"`
	// InFlight limits the requests in flight, reservations included.
	InFlight int `yaml:"in_flight"`
	// ReservedTokens limits the tokens of live reservations: prompts and expected outputs.
	ReservedTokens int `yaml:"reserved_tokens"`
	// MaxPriority is the highest priority that a request may have: higher is served first, 0 is the default (a body's field "priority"
	// with its sign inverted).
	MaxPriority *int `yaml:"max_priority"`
	// Weight is the tenant's share of the fleet while requests wait, relative to the other tenants'. Unset: 1.
	Weight float64 `yaml:"weight"`
}

// bounds of what may be set, so that arithmetic stays exact.
const (
	maxCount  = 1 << 40
	maxWeight = 1e6
)

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c)) {
		bad := func(field, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s.%s: %s", name, field, fmt.Sprintf(format, args...)))
		}
		l := c[name]
		if name == "" || len(name) > 256 {
			errs = append(errs, fmt.Errorf("%q: a tenant's name must have 1 to 256 characters", name))
		}
		if r := l.RequestsPerSecond; r != unlimited && (math.IsNaN(r) || r < 0 || r > maxCount) {
			bad("requests_per_second", "must be a rate or -1, not %v", r)
		}
		for field, n := range map[string]int{
			"request_burst": l.RequestBurst, "tokens_per_minute": l.TokensPerMinute, "token_burst": l.TokenBurst,
			"in_flight": l.InFlight, "reserved_tokens": l.ReservedTokens,
		} {
			if n < unlimited || n > maxCount {
				bad(field, "must be a number or -1, not %d", n)
			}
		}
		if w := l.Weight; math.IsNaN(w) || w < 0 || w > maxWeight || w > 0 && w < 1/maxWeight {
			bad("weight", "must be from %[2]g to %[3]g, not %[1]v", w, 1/maxWeight, maxWeight)
		}
	}
	return errors.Join(errs...)
}

// limits are a tenant's own, with the default's filled in: zero is no limit.
type limits struct {
	rate        float64 // requests per second
	burst       int
	tokens      float64 // per second
	tokenBurst  float64
	inFlight    int
	reserved    int
	maxPriority int
	capped      bool
	weight      float64
}

// some reports whether anything must be counted or refused.
func (l limits) some() bool {
	return l.rate > 0 || l.tokens > 0 || l.inFlight > 0 || l.reserved > 0
}

// debt bounds how far the bucket of tokens may be below zero, so that no tenant waits for longer than longest until it is paid.
func (l limits) debt() float64 { return l.tokens * longest.Seconds() }

// of gives the limits of a tenant.
func (c Config) of(name string) limits {
	own, base := c[name], c[Default]
	var l limits
	l.rate = max(0, or(own.RequestsPerSecond, base.RequestsPerSecond))
	if l.burst = or(own.RequestBurst, base.RequestBurst); l.burst <= 0 {
		l.burst = max(1, int(math.Ceil(l.rate)))
	}
	perMinute := float64(max(0, or(own.TokensPerMinute, base.TokensPerMinute)))
	l.tokens = perMinute / 60
	if l.tokenBurst = float64(or(own.TokenBurst, base.TokenBurst)); l.tokenBurst <= 0 {
		l.tokenBurst = perMinute
	}
	l.inFlight = max(0, or(own.InFlight, base.InFlight))
	l.reserved = max(0, or(own.ReservedTokens, base.ReservedTokens))
	if highest := own.MaxPriority; highest != nil {
		l.maxPriority, l.capped = *highest, true
	} else if highest = base.MaxPriority; highest != nil {
		l.maxPriority, l.capped = *highest, true
	}
	if l.weight = or(own.Weight, base.Weight); l.weight <= 0 {
		l.weight = 1
	}
	return l
}

// or is a unless it is zero.
func or[T int | float64](a, b T) T {
	if a != 0 {
		return a
	}
	return b
}
