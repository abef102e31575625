package settings

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
	Config Config
	// HoldAbove is Config.HoldAbove in seconds.
	HoldAbove float64
	common    Rules
	models    map[string]*Rules
}

// Rules are the settings for one model.
type Rules struct {
	Policy decision.Policy
	Shadow decision.Policy
	Params decision.Params
	// Objective and targets are the goals of predicted-ttft.
	Objective decision.Objective
	Targets   decision.Targets
	// params are the numbers under each objective that a request may ask for.
	params map[decision.Objective]decision.Params
}

// Under returns the numbers with which a request is chosen that has an objective of its own.
func (r *Rules) Under(o decision.Objective) decision.Params { return r.params[o] }

// New makes the settings of a valid config.
func New(c Config) *Settings {
	s := &Settings{Config: c, HoldAbove: c.HoldAbove.Seconds(), common: c.rules(ModelConfig{}), models: make(map[string]*Rules, len(c.Models))}
	for name, own := range c.Models {
		r := c.rules(own)
		s.models[name] = &r
	}
	return s
}

// rules joins the common settings with a model's own.
func (c Config) rules(own ModelConfig) Rules {
	r := Rules{
		Policy: cmp.Or(own.Policy, c.Policy), Shadow: cmp.Or(own.Shadow, c.Shadow), Objective: cmp.Or(own.Objective, c.Objective),
		Targets: own.SLO.targets().Or(c.SLO.targets()),
	}
	r.params = make(map[decision.Objective]decision.Params)
	for _, o := range decision.Objectives() {
		params, _ := selector.Apply(selector.ForObjective(selector.DefaultParams(), o), c.Weights) // Validate checked both
		r.params[o], _ = selector.Apply(params, own.Weights)
	}
	r.Params = r.params[r.Objective]
	return r
}

// Of returns the rules for a model.
func (s *Settings) Of(model string) *Rules {
	if t, own := s.models[model]; own {
		return t
	}
	return &s.common
}

// ReadsCache reports whether a request of the model, with these options, will be decided by the replicas' overlap with its prompt,
// be it by the serving policy or by the shadow policy.
func (s *Settings) ReadsCache(model string, o *Options) bool {
	r := s.Of(model)
	return cmp.Or(o.Policy, r.Policy).ReadsCache() || r.Shadow.ReadsCache()
}

// ReadsText reports whether the request will be decided by its prompt's text.
func (s *Settings) ReadsText(model string, o *Options) bool {
	return cmp.Or(o.Policy, s.Of(model).Policy) == decision.PrefixAffinity
}

// Current are the settings in force.
type Current struct{ atomic.Pointer[Settings] }

// Or returns a request's own settings, or else the current ones.
func (c *Current) Or(own *Settings) *Settings {
	if own != nil {
		return own
	}
	return c.Load()
}

// Horizon is the time within which a program returns; 0 when no session is one.
func (c *Current) Horizon() time.Duration { return c.Load().Config.ProgramHorizon }
