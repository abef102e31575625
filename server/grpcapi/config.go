package grpcapi

import (
	"errors"
	"fmt"

	"github.com/kvpilot/kvpilot/server/secret"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Keys are the API keys that callers must show, one of them. Empty (and no KeysFile): no key is asked for.
	Keys []Key `yaml:"keys"`
	// KeysFile names a file with one "name:key" or "name:key:admin" per line; lines that begin with # are
	// comments.
	KeysFile string `yaml:"keys_file"`
	// Overrides lets callers choose the policy, its numbers and the replicas of a request by
	// x-kvpilot-* headers and ChooseReplica's fields.
	Overrides bool `yaml:"overrides"`
}

// Key is one caller's API key.
type Key struct {
	// Name is the tenant that requests with this key count for.
	Name string `yaml:"name"`
	// Key is the secret itself.
	Key secret.String `yaml:"key"`
	// Admin also lets its holder register, drain and deregister replicas, and reload the settings.
	Admin bool `yaml:"admin"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Overrides: true} }

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	names := map[string]bool{}
	for i, k := range c.Keys {
		if err := k.check(); err != nil {
			errs = append(errs, fmt.Errorf("keys[%d]: %w", i, err))
		}
		if names[k.Name] {
			errs = append(errs, fmt.Errorf("keys[%d]: the name %q comes twice", i, k.Name))
		}
		names[k.Name] = true
	}
	return errors.Join(errs...)
}

func (k Key) check() error {
	switch {
	case k.Name == "":
		return errors.New("a key needs a name")
	case len(k.Key.Reveal()) < 8:
		return fmt.Errorf("the key of %q is shorter than 8 bytes", k.Name)
	}
	return nil
}
