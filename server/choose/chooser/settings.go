package chooser

import (
	"fmt"

	"github.com/kvpilot/kvpilot/server/choose/selector"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Settings are a Config made ready for choices. They never change: a request that began with some keeps them over its
// retries, whatever was reloaded meanwhile.
type Settings struct {
	config Config
	// holdAbove is Config.HoldAbove in seconds.
	holdAbove float64
	common    terms
	models    map[string]*terms
}

// terms are what is set for one model.
type terms struct {
	policy decision.Policy
	shadow decision.Policy
	params decision.Params
	// objective and targets are what predicted-ttft strives for.
	objective decision.Objective
	targets   decision.Targets
}

func newSettings(c Config) (*Settings, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Settings{config: c, holdAbove: c.HoldAbove.Seconds(), models: make(map[string]*terms, len(c.Models))}
	if err := s.common.fill(c, ModelConfig{}); err != nil {
		return nil, err
	}
	for name, own := range c.Models {
		t := &terms{}
		if err := t.fill(c, own); err != nil {
			return nil, err
		}
		s.models[name] = t
	}
	return s, nil
}

// fill joins the common settings with a model's own.
func (t *terms) fill(c Config, own ModelConfig) error {
	t.policy, t.shadow, t.objective = c.Policy, c.Shadow, c.Objective
	if own.Policy != "" {
		t.policy = own.Policy
	}
	if own.Shadow != "" {
		t.shadow = own.Shadow
	}
	if own.Objective != "" {
		t.objective = own.Objective
	}
	t.targets = own.SLO.targets().Or(c.SLO.targets())
	params, err := selector.Apply(selector.ForObjective(selector.DefaultParams(), t.objective), c.Weights)
	if err == nil {
		params, err = selector.Apply(params, own.Weights)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	t.params = params
	return nil
}

// of are the terms of a model.
func (s *Settings) of(model string) *terms {
	if t, own := s.models[model]; own {
		return t
	}
	return &s.common
}

// Settings are those in force, for a request that begins.
func (c *Chooser) Settings() *Settings { return c.settings.Load() }

// Config is what is in force.
func (c *Chooser) Config() Config { return c.settings.Load().config }

// settingsOf are those of a request.
func (c *Chooser) settingsOf(req *Request) *Settings {
	if req.Settings != nil {
		return req.Settings
	}
	return c.settings.Load()
}

// Update puts new settings in force, for requests that begin from now on. Ring and Tree stay as they were. When it returns
// an error, nothing has changed.
func (c *Chooser) Update(cfg Config) error {
	cfg.Ring, cfg.Tree = c.ring, c.tree
	next, err := newSettings(cfg)
	if err != nil {
		return err
	}
	if err := c.queue.Update(cfg.Queue); err != nil {
		return err
	}
	c.settings.Store(next)
	c.nudge() // those who wait may have room now
	return nil
}
