package standby

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// Config has the settings. Defaults live in DefaultConfig alone.
type Config struct {
	// Models have replicas that an autoscaler starts, also from zero, by the names that clients use. Requests for them wait while no
	// replica is ready.
	Models []string `yaml:"models"`
	// Wake wakes sleeping engines of these models (vLLM's --enable-sleep-mode, level 1) by /wake_up, which vLLM serves with
	// VLLM_SERVER_DEV_MODE=1 alone: one for a request that finds none awake, further ones as the wanted replicas say.
	Wake bool `yaml:"wake"`
	// MaxWait is the longest time that a request waits for its first replica.
	MaxWait time.Duration `yaml:"max_wait"`
	// MaxRequests limits the requests that wait so, over all models; further ones are rejected.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes limits the bodies of these requests.
	MaxBytes quantity.Bytes `yaml:"max_bytes"`
	// Utilization is the share of a replica's time for which kvpilot_pool_wanted_replicas is computed: the less, the more replicas.
	Utilization float64 `yaml:"utilization"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxWait: 5 * time.Minute, MaxRequests: 4096, MaxBytes: 256 << 20, Utilization: 0.5}
}

// maxModels bounds the models of the settings.
const maxModels = 64

// Validate reports every bad field at once.
func (c Config) Validate() error {
	errs := []error{
		check.AtLeast("max_requests", c.MaxRequests, 1),
		check.AtLeast("max_bytes", c.MaxBytes, 1),
	}
	if c.MaxWait <= 0 {
		errs = append(errs, errors.New("max_wait: must be positive"))
	}
	if c.Utilization < 0.05 || c.Utilization > 1 {
		errs = append(errs, fmt.Errorf("utilization: must be from 0.05 to 1, not %v", c.Utilization))
	}
	if len(c.Models) > maxModels {
		errs = append(errs, fmt.Errorf("models: at most %d are allowed, not %d", maxModels, len(c.Models)))
	}
	if slices.Contains(c.Models, "") {
		errs = append(errs, errors.New("models: a name must not be empty"))
	}
	return errors.Join(errs...)
}
