package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvpilot/kvpilot/server/telemetry"
)

// Config is the tree of all settings: a struct of the parts' own structs.
type Config struct {
	// Telemetry: logs, metrics and traces.
	Telemetry telemetry.Config `yaml:"telemetry"`
}

// Default returns the defaults of every part.
func Default() Config {
	return Config{
		Telemetry: telemetry.DefaultConfig(),
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		within("telemetry", c.Telemetry.Validate()),
	)
}

// within puts the section's name before each of the errors.
func within(section string, err error) error {
	if err == nil {
		return nil
	}
	joined, many := err.(interface{ Unwrap() []error })
	if !many {
		return fmt.Errorf("%s.%w", section, err)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, within(section, e))
	}
	return errors.Join(errs...)
}

// EnvName is the environment variable of a setting's path.
func EnvName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}
