package tokenizer

import (
	"errors"
	"fmt"

	"github.com/kvpilot/kvpilot/server/kit/quantity"
	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Config has the settings of an operator.
type Config struct {
	// Enabled turns tokenization on; without it, requests are routed by approximate keys and load.
	Enabled bool `yaml:"enabled"`
	// Remote configures the replicas as tokenizers.
	Remote remote.Config `yaml:"remote"`
	// CacheBytes limits the memory of cached encodings, at four bytes per token. The garbage collector takes as much again. Zero: no
	// cache. -1: a sixteenth of memory.max_bytes, at most 2 GiB.
	CacheBytes quantity.Bytes `yaml:"cache_bytes"`
	// HeldBytes limits the memory of the encodings of requests in flight: half a byte per token, and four more, in at most half of it,
	// where the ids are handed over or a stream may be resumed. A request that finds no room is routed without ids. Zero: an eighth of
	// memory.max_bytes.
	HeldBytes quantity.Bytes `yaml:"held_bytes"`
	// Conversations scores a growing conversation by the ids that are already known. It needs the cache.
	Conversations bool `yaml:"conversations"`
	// Background limits the concurrent encodings that are completed in the background after an early answer.
	Background int `yaml:"background"`
	// Handoff sends ids to the engine so that it does not tokenize again: off, completions or all.
	Handoff string `yaml:"handoff"`
	// Models overrides the settings of single models, by the name that clients use.
	Models map[string]ModelConfig `yaml:"models"`
}

// ModelConfig has an operator's settings for one model.
type ModelConfig struct {
	// Handoff overrides tokenizer.handoff. Empty: no override.
	Handoff string `yaml:"handoff"`
	// TemplateDefaults repeats the engine's --default-chat-template-kwargs (a JSON object), for engines 0.14 to 0.17.
	TemplateDefaults string `yaml:"template_defaults"`
	// DropToolsOnNone repeats the engine's --exclude-tools-when-tool-choice-none.
	DropToolsOnNone bool `yaml:"drop_tools_on_none"`
}

// The values of Handoff.
const (
	handoffOff         = "off"
	handoffCompletions = "completions"
	handoffAll         = "all"
)

// computed is CacheBytes where it is a share of the memory. The limits where that is not known follow.
const (
	computed     = -1
	unknownCache = 32 << 20
	unknownHeld  = 64 << 20
)

// DefaultConfig has the defaults.
func DefaultConfig() Config {
	return Config{
		Enabled:       true,
		Remote:        remote.DefaultConfig(),
		CacheBytes:    computed,
		Conversations: true,
		Background:    8,
		Handoff:       handoffCompletions,
	}
}

// Validate reports every bad field, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	if err := c.Remote.Validate(); err != nil {
		errs = append(errs, prefixed("remote", err)...)
	}
	if c.CacheBytes < computed {
		errs = append(errs, fmt.Errorf("cache_bytes: must be at least 0, or -1 for a share of the memory, not %s", c.CacheBytes))
	}
	if c.HeldBytes != 0 && c.HeldBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("held_bytes: must be 0 or at least 1MiB, not %s", c.HeldBytes))
	}
	if c.Background < 1 || c.Background > 1024 {
		errs = append(errs, fmt.Errorf("background: must be from 1 to 1024, not %d", c.Background))
	}
	if !validHandoff(c.Handoff) {
		errs = append(errs, fmt.Errorf("handoff: must be off, completions or all, not %q", c.Handoff))
	}
	for name, m := range c.Models {
		if m.Handoff != "" && !validHandoff(m.Handoff) {
			errs = append(errs, fmt.Errorf("models.%s.handoff: must be off, completions or all, not %q", name, m.Handoff))
		}
		if d := m.TemplateDefaults; d != "" && rawjson.Members([]byte(d), func(string, []byte) bool { return true }) != nil {
			errs = append(errs, fmt.Errorf("models.%s.template_defaults: not a JSON object", name))
		}
	}
	return errors.Join(errs...)
}

func validHandoff(s string) bool {
	return s == handoffOff || s == handoffCompletions || s == handoffAll
}

// prefixed names the section in each of the joined errors.
func prefixed(section string, err error) []error {
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for i, e := range list {
		list[i] = fmt.Errorf("%s.%w", section, e)
	}
	return list
}
