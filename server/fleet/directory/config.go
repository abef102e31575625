package directory

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// The kinds of services.
const (
	LMCache  = "lmcache"
	Mooncake = "mooncake"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Kind is the service that is asked: lmcache (the coordinator of LMCache's servers) or mooncake (Mooncake's conductor). Empty: none.
	Kind string `yaml:"kind"`
	// URL is the base URL of the service.
	URL string `yaml:"url"`
	// Budget is the longest time that a choice waits for an answer, without the time for the prompt's tokens.
	Budget time.Duration `yaml:"budget"`
	// TokenBudget is the time by which a choice waits longer for each prompt token that every rank lacks on its GPU. No choice waits longer than a second.
	TokenBudget time.Duration `yaml:"token_budget"`
	// LeastTokens is the number of prompt tokens that every rank must lack on its GPU for the service to be asked.
	LeastTokens int `yaml:"least_tokens"`
	// Models maps the name that engines serve a model under to the name that the service has for it; a model without an entry has the same name.
	Models map[string]string `yaml:"models"`
	// ChunkTokens is LMCache's chunk size. Mooncake's conductor needs none.
	ChunkTokens int `yaml:"chunk_tokens"`
	// WorldSize is the number of ranks of an engine that store a part of each chunk with LMCache (tensor by pipeline parallelism).
	WorldSize int `yaml:"world_size"`
	// Tenant is the tenant under which engines are registered with Mooncake's conductor. LMCache needs none.
	Tenant string `yaml:"tenant"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Budget: 5 * time.Millisecond, TokenBudget: time.Microsecond, LeastTokens: 1024, ChunkTokens: 256, WorldSize: 1, Tenant: "default"}
}

const (
	// maxBudget bounds the wait of a choice: one that waits longer has lost more than most loads gain.
	maxBudget = time.Second
	// maxTokenBudget bounds TokenBudget.
	maxTokenBudget = time.Millisecond
)

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	errs := []error{
		check.OneOf("kind", c.Kind, "", LMCache, Mooncake),
		check.Between("budget", c.Budget, time.Millisecond, maxBudget),
		check.Between("token_budget", c.TokenBudget, 0, maxTokenBudget),
		check.AtLeast("least_tokens", c.LeastTokens, 1),
		check.AtLeast("chunk_tokens", c.ChunkTokens, 1),
		check.Between("world_size", c.WorldSize, 1, maxWorld),
		check.NotEmpty("tenant", c.Tenant),
	}
	if c.Kind != "" {
		at, err := url.Parse(c.URL)
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.RawQuery != "" || at.Fragment != "" || at.User != nil {
			errs = append(errs, fmt.Errorf("url: must be a base URL such as http://10.0.0.9:9300, not %q", c.URL))
		}
	}
	for served, name := range c.Models {
		if served == "" || name == "" {
			errs = append(errs, errors.New("models: names must not be empty"))
		}
	}
	return errors.Join(errs...)
}

// maxWorld bounds WorldSize: an answer has an entry for each chunk and rank.
const maxWorld = 1024
