package chooser

import (
	"cmp"
	"sync/atomic"

	"time"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Settings are a Config made ready for choices. They never change: a request that began with some keeps them over its
// retries, even after a reload.
type Settings struct {
	config Config
	// holdAbove is Config.HoldAbove in seconds.
	holdAbove float64
	common    rules
	models    map[string]*rules
}

// rules are the settings for one model.
type rules struct {
	policy decision.Policy
	shadow decision.Policy
	params decision.Params
	// objective and targets are the goals of predicted-ttft.
	objective decision.Objective
	targets   decision.Targets
}

func newSettings(c Config) *Settings {
	s := &Settings{config: c, holdAbove: c.HoldAbove.Seconds(), common: c.rules(ModelConfig{}), models: make(map[string]*rules, len(c.Models))}
	for name, own := range c.Models {
		r := c.rules(own)
		s.models[name] = &r
	}
	return s
}

// rules joins the common settings with a model's own.
func (c Config) rules(own ModelConfig) rules {
	r := rules{
		policy: cmp.Or(own.Policy, c.Policy), shadow: cmp.Or(own.Shadow, c.Shadow), objective: cmp.Or(own.Objective, c.Objective),
		targets: own.SLO.targets().Or(c.SLO.targets()),
	}
	r.params, _ = selector.Apply(selector.ForObjective(selector.DefaultParams(), r.objective), c.Weights) // Validate checked both
	r.params, _ = selector.Apply(r.params, own.Weights)
	return r
}

// of returns the rules for a model.
func (s *Settings) of(model string) *rules {
	if t, own := s.models[model]; own {
		return t
	}
	return &s.common
}

// ReadsCache reports whether a request of the model, with these options, will be decided by the replicas' overlap with its prompt,
// be it by the serving policy or by the shadow policy.
func (s *Settings) ReadsCache(model string, o *Options) bool {
	r := s.of(model)
	return cmp.Or(o.Policy, r.policy).ReadsCache() || r.shadow.ReadsCache()
}

// ReadsText reports whether the request will be decided by its prompt's text.
func (s *Settings) ReadsText(model string, o *Options) bool {
	return cmp.Or(o.Policy, s.of(model).policy) == decision.PrefixAffinity
}

// current are the settings in force.
type current struct{ atomic.Pointer[Settings] }

// or returns a request's own settings, or else those in force.
func (c *current) or(own *Settings) *Settings {
	if own != nil {
		return own
	}
	return c.Load()
}

// horizon is the time within which a program returns; 0 when no session is one.
func (c *current) horizon() time.Duration { return c.Load().config.ProgramHorizon }
