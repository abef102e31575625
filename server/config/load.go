package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goccy/go-yaml"
)

// Source says where settings come from.
type Source struct {
	// File is the path of a YAML file; empty reads none.
	File string
	// Env is the environment in os.Environ's form.
	Env []string
	// Set are "path.to.key=value" overrides from the command line.
	Set []string
}

// Load reads, overrides and validates the settings.
func Load(s Source) (Config, error) {
	c := Default()
	if s.File != "" {
		text, err := os.ReadFile(s.File)
		if err != nil {
			return c, fmt.Errorf("read settings: %w", err)
		}
		if err := Parse(text, &c); err != nil {
			return c, fmt.Errorf("%s: %w", s.File, err)
		}
	}
	if err := errors.Join(applyEnv(&c, s.Env), applySet(&c, s.Set)); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// Parse reads YAML over the values in c. Unknown keys are errors that show the line.
func Parse(text []byte, c *Config) error {
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(c)
	if errors.Is(err, io.EOF) { // an empty file sets nothing
		return nil
	}
	return err
}

// Print writes the settings as YAML, secrets starred.
func Print(to io.Writer, c Config) error {
	text, err := yaml.MarshalWithOptions(c, yaml.Indent(2), yaml.UseLiteralStyleIfMultiline(true))
	if err != nil {
		return fmt.Errorf("print settings: %w", err)
	}
	_, err = to.Write(text)
	return err
}
