package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Policy is the policy for models that set none: predicted-ttft, overlap-load, weighted-scorers, prefix-affinity,
	// consistent-hash, least-tokens, least-requests, power-of-two, round-robin or random. docs/policies.md says when
	// to use which.
	Policy decision.Policy `yaml:"policy"`
	// Objective is the quantity that predicted-ttft minimizes: answer (the time to the last token, with nearly the best time to the
	// first), ttft, completion (the time to the last token alone) or slo (the number of answers that miss the targets below; a request
	// that no replica can serve in time is rejected with 429 at once). See docs/policies.md.
	Objective decision.Objective `yaml:"objective"`
	// SLO sets the targets of models that have none of their own. Requests may set their own with the headers
	// X-Kvpilot-TTFT-Ms and X-Kvpilot-TPOT-Ms.
	SLO SLOConfig `yaml:"slo"`
	// Weights overrides the policies' parameters by name, for example overlap_credit.
	Weights map[string]float64 `yaml:"weights"`
	// Shadow names a policy that runs in parallel; its choices are recorded and never served. Empty: none.
	Shadow decision.Policy `yaml:"shadow"`
	// Models overrides policy, objective, slo, weights and shadow for single models, by the name that clients use.
	Models map[string]ModelConfig `yaml:"models"`
	// HoldAbove is the predicted prefill time that a rank may have queued before requests wait in the router (predicted-ttft only), at
	// most one full step of the engine. A rank of unknown speed gets more. Zero: no hold queue.
	HoldAbove time.Duration `yaml:"hold_above"`
	// CopyPrefixes copies the beginning of a prompt from one rank's cache to another's while such requests wait, where that costs less
	// (predicted-ttft with the hold queue, and replicas with a KV connector, only).
	CopyPrefixes bool `yaml:"copy_prefixes"`
	// SessionTTL is how long a session's rank is remembered after its last request, or after its announced return. Zero: as long as there
	// is room.
	SessionTTL time.Duration `yaml:"session_ttl"`
	// MaxRequestsPerRank excludes ranks with that many requests in flight. Zero: no limit.
	MaxRequestsPerRank int `yaml:"max_requests_per_rank"`
	// Stall says when a replica that reports healthy but makes no progress is avoided.
	Stall StallConfig `yaml:"stall"`
	// ProgramHorizon is how soon a session must be likely to return to count as a program, whose context has a claim on its rank's memory
	// between its calls (docs/agents.md; predicted-ttft with the hold queue only). Zero: no session is a program.
	ProgramHorizon time.Duration `yaml:"program_horizon"`
	// Queue limits the hold queue.
	Queue holdqueue.Config `yaml:"queue"`
	// Ring configures consistent-hash.
	Ring selector.RingConfig `yaml:"ring"`
	// Tree configures prefix-affinity's text tree.
	Tree selector.TreeConfig `yaml:"tree"`
}

// SLOConfig has the bounds that an answer must keep to be good; zero asks nothing.
type SLOConfig struct {
	// TTFT is the target of the time to the first token.
	TTFT time.Duration `yaml:"ttft"`
	// TPOT is the target of the mean time of each token after the first.
	TPOT time.Duration `yaml:"tpot"`
}

func (c SLOConfig) targets() decision.Targets { return decision.Targets{TTFT: c.TTFT, TPOT: c.TPOT} }

// ModelConfig is one model's own choice of policy; empty fields keep the common ones.
type ModelConfig struct {
	// Policy overrides chooser.policy.
	Policy decision.Policy `yaml:"policy"`
	// Objective overrides chooser.objective.
	Objective decision.Objective `yaml:"objective"`
	// SLO overrides chooser.slo.
	SLO SLOConfig `yaml:"slo"`

	// Weights overrides chooser.weights.
	Weights map[string]float64 `yaml:"weights"`
	// Shadow overrides chooser.shadow.
	Shadow decision.Policy `yaml:"shadow"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Policy:    decision.PredictedTTFT,
		Objective: decision.ObjectiveAnswer,
		HoldAbove: 500 * time.Millisecond, CopyPrefixes: true, SessionTTL: 30 * time.Minute, ProgramHorizon: 20 * time.Second,
		Stall: StallConfig{After: 2 * time.Second, Unhealthy: 10 * time.Second, Stream: 30 * time.Second},
		Queue: holdqueue.DefaultConfig(),
		Ring:  selector.DefaultRingConfig(),
		Tree:  selector.DefaultTreeConfig(),
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	errs := []error{
		check.NotEmpty("policy", c.Policy),
		validateRules("", ModelConfig{c.Policy, c.Objective, c.SLO, c.Weights, c.Shadow}),
		check.AtLeast("hold_above", c.HoldAbove, 0),
		check.AtLeast("session_ttl", c.SessionTTL, 0),
		check.AtLeast("program_horizon", c.ProgramHorizon, 0),
		check.AtLeast("max_requests_per_rank", c.MaxRequestsPerRank, 0),
		check.AtLeast("stall.after", c.Stall.After, 0),
		check.AtLeast("stall.unhealthy", c.Stall.Unhealthy, 0),
		check.AtLeast("stall.stream", c.Stall.Stream, 0),
		check.Within("queue", c.Queue.Validate()),
		check.Within("ring", c.Ring.Validate()),
		check.Within("tree", c.Tree.Validate()),
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		m := c.Models[name]
		if m.Objective == "" {
			m.Objective = c.Objective
		}
		errs = append(errs, validateRules("models."+name+".", m))
	}
	return errors.Join(errs...)
}

// validateRules checks what may be set for all models or for one.
func validateRules(name string, m ModelConfig) error {
	_, err := selector.Apply(selector.DefaultParams(), m.Weights)
	if err != nil {
		err = fmt.Errorf("%sweights: %w", name, err)
	}
	return errors.Join(
		check.OneOf(name+"policy", m.Policy, append(decision.Policies(), "")...),
		check.OneOf(name+"shadow", m.Shadow, append(decision.Policies(), "")...),
		check.OneOf(name+"objective", m.Objective, decision.Objectives()...),
		check.AtLeast(name+"slo.ttft", m.SLO.TTFT, 0),
		check.AtLeast(name+"slo.tpot", m.SLO.TPOT, 0),
		err,
	)
}

// StallConfig configures when a rank that has requests and makes no progress is avoided although its replica
// reports itself healthy.
type StallConfig struct {
	// After is the shortest time without output, while the engine's counters do not change, after which a rank with requests is stalled
	// (docs/replicas.md); five times as long where its counters are not read. Zero: stalls are not detected, and bookings of external
	// callers are not doubted.
	After time.Duration `yaml:"after"`
	// Unhealthy is how long a stream may wait for a replica that is unhealthy and silent before it ends with an error or is resumed
	// elsewhere. Zero: without limit.
	Unhealthy time.Duration `yaml:"unhealthy"`
	// Stream is how long a stream that can be resumed elsewhere may be silent after its first text while its rank serves others. Streams
	// of a stalled rank are resumed two seconds after the verdict. Zero: without limit.
	Stream time.Duration `yaml:"stream"`
}
