package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// Source says where settings come from.
type Source struct {
	// File is the path of a YAML file; empty reads none.
	File string
	// Env is the environment in os.Environ's form.
	Env []string
	// Set are "path.to.key=value" overrides from the command line.
	Set []string
	// Replicas are base URLs from the command line, in addition to registry.replicas.
	Replicas []string
}

// Load reads, overrides and validates the settings.
func Load(s Source) (Config, error) {
	loaded, err := Read(s)
	return loaded.Config, err
}

// Read is Load, with the text that was read and the digests of the files that it names.
func Read(s Source) (reload.Loaded[Config], error) {
	loaded := reload.Loaded[Config]{Config: Default()}
	c := &loaded.Config
	if s.File != "" {
		var err error
		if loaded.Text, err = os.ReadFile(s.File); err != nil {
			return loaded, fmt.Errorf("read settings: %w", err)
		}
		if err := Parse(loaded.Text, c); err != nil {
			return loaded, fmt.Errorf("%s: %w", s.File, err)
		}
	}
	if err := errors.Join(applyEnv(c, s.Env), applySet(c, s.Set)); err != nil {
		return loaded, err
	}
	for _, url := range s.Replicas {
		c.Registry.Replicas = append(c.Registry.Replicas, registry.Spec{URL: url})
	}
	loaded.Files = NamedFiles(*c)
	return loaded, c.Validate()
}

// Lookup is a variable of the environment.
func (s Source) Lookup(name string) (string, bool) {
	for _, entry := range s.Env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Parse reads YAML over the values in c. Unknown keys are errors that name the line; its text is left out, for a secret may
// stand there.
func Parse(text []byte, c *Config) error {
	if err := checkTypes(text); err != nil {
		return err
	}
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(c)
	if err == nil || errors.Is(err, io.EOF) { // an empty file sets nothing
		return nil
	}
	return errors.New(yaml.FormatError(err, false, false))
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
