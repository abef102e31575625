package splits

import (
	"errors"
	"fmt"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Models share the requests for a model between sides. A model that an InferenceModelRewrite splits is split by that alone.
	Models []Split `yaml:"models"`
	// StepBack stops requests to a side that is clearly worse than the one with the largest weight, until an operator sends it forward
	// again (kvpilot splits forward).
	StepBack bool `yaml:"step_back"`
	// StepBackSessions is the least number of sessions on each side for that; a request without a session counts as one.
	StepBackSessions int `yaml:"step_back_sessions"`
}

// Split shares the requests for one model.
type Split struct {
	// Model is the model as clients name it.
	Model string `yaml:"model"`
	// Sides are the parts. Requests are shared by their weights.
	Sides []Side `yaml:"sides"`
}

// Side is one part of a split.
type Side struct {
	// Name names the side in metrics and decisions. Empty: its model's name.
	Name string `yaml:"name"`
	// Model is the model that the side's requests get. Empty: the split's.
	Model string `yaml:"model"`
	// Labels limit the side to the replicas that have all of these labels.
	Labels map[string]string `yaml:"labels"`
	// Weight is the side's share of the sum of all weights. 0: none.
	Weight int `yaml:"weight"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{StepBackSessions: 50} }

const (
	// mostSplits bounds the splits that are remembered, mostSides the sides of one.
	mostSplits, mostSides = 256, 16
	maxWeight             = 1_000_000
	minSessions           = 20
)

// Validate reports every bad field at once.
func (c Config) Validate() error {
	var errs []error
	if c.StepBackSessions < minSessions || c.StepBackSessions > maxWeight {
		errs = append(errs, fmt.Errorf("step_back_sessions: must be from %d to %d, not %d", minSessions, maxWeight, c.StepBackSessions))
	}
	if len(c.Models) > mostSplits {
		errs = append(errs, fmt.Errorf("models: at most %d are allowed, not %d", mostSplits, len(c.Models)))
	}
	seen := map[string]bool{}
	for i, m := range c.Models {
		at := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Model == "":
			errs = append(errs, fmt.Errorf("%s.model: must not be empty", at))
		case seen[m.Model]:
			errs = append(errs, fmt.Errorf("%s.model: %q has a split already", at, m.Model))
		}
		seen[m.Model] = true
		errs = append(errs, m.validate(at))
	}
	return errors.Join(errs...)
}

func (m Split) validate(at string) error {
	var errs []error
	if len(m.Sides) < 1 || len(m.Sides) > mostSides {
		errs = append(errs, fmt.Errorf("%s.sides: must be 1 to %d, not %d", at, mostSides, len(m.Sides)))
	}
	names, sum := map[string]bool{}, 0
	for i, s := range m.Sides {
		name := s.name(m.Model)
		if names[name] {
			errs = append(errs, fmt.Errorf("%s.sides[%d].name: %q is the name of another side", at, i, name))
		}
		names[name] = true
		if s.Weight < 0 || s.Weight > maxWeight {
			errs = append(errs, fmt.Errorf("%s.sides[%d].weight: must be from 0 to %d, not %d", at, i, maxWeight, s.Weight))
		}
		sum += s.Weight
	}
	if sum == 0 && len(m.Sides) > 0 {
		errs = append(errs, fmt.Errorf("%s.sides: one side must have a weight above 0", at))
	}
	return errors.Join(errs...)
}

// name is the side's name in a split of model.
func (s Side) name(model string) string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Model != "":
		return s.Model
	}
	return model
}
