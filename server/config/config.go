package config

import (
	"errors"
	"fmt"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/edge/admin"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Config is the tree of all settings: a struct of the parts' own structs.
type Config struct {
	// Where the router is reached, and how it leaves.
	Listen Listen `yaml:"listen"`
	// Which replicas exist.
	Registry registry.Config `yaml:"registry"`
	// How a request is read and sent.
	Router router.Config `yaml:"router"`
	// How a replica is chosen, and how requests wait.
	Chooser chooser.Config `yaml:"chooser"`
	// How prompts become token ids.
	Tokenizer tokenizer.Config `yaml:"tokenizer"`
	// The index of which rank holds which KV block.
	KVIndex kvindex.Config `yaml:"kvindex"`
	// The engines' KV cache events.
	KVEvents kvevents.Config `yaml:"kvevents"`
	// Reservations.
	Load load.Config `yaml:"load"`
	// What engines report of their load.
	EngineStats enginestats.Config `yaml:"enginestats"`
	// Connections to replicas, retries, breakers.
	Upstream upstream.Config `yaml:"upstream"`
	// The memory of decisions.
	Decisions decisionlog.Config `yaml:"decisions"`
	// The record of who did what.
	Audit audit.Config `yaml:"audit"`
	// Who may call, and what callers may ask for.
	API grpcapi.Config `yaml:"api"`
	// What each tenant may take, and its share while requests wait.
	Tenants quota.Config `yaml:"tenants"`
	// The REST surface.
	Gateway gateway.Config `yaml:"gateway"`
	// The operators' surface.
	Admin admin.Config `yaml:"admin"`
	// Logs, metrics and traces.
	Telemetry telemetry.Config `yaml:"telemetry"`
	// How settings change while the router runs.
	Reload Reload `yaml:"reload"`
}

// Default returns the defaults of every part.
func Default() Config {
	return Config{
		Listen:      DefaultListen(),
		Registry:    registry.DefaultConfig(),
		Router:      router.DefaultConfig(),
		Chooser:     chooser.DefaultConfig(),
		Tokenizer:   tokenizer.DefaultConfig(),
		KVIndex:     kvindex.DefaultConfig(),
		KVEvents:    kvevents.DefaultConfig(),
		Load:        load.DefaultConfig(),
		EngineStats: enginestats.DefaultConfig(),
		Upstream:    upstream.DefaultConfig(),
		Decisions:   decisionlog.DefaultConfig(),
		Audit:       audit.DefaultConfig(),
		API:         grpcapi.DefaultConfig(),
		Gateway:     gateway.DefaultConfig(),
		Admin:       admin.DefaultConfig(),
		Telemetry:   telemetry.DefaultConfig(),
		Reload:      Reload{Watch: true, Versions: defaultVersions},
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		within("listen", c.Listen.Validate()),
		within("registry", c.Registry.Validate()),
		within("router", c.Router.Validate()),
		within("chooser", c.Chooser.Validate()),
		within("tokenizer", c.Tokenizer.Validate()),
		within("kvindex", c.KVIndex.Validate()),
		within("kvevents", c.KVEvents.Validate()),
		within("load", c.Load.Validate()),
		within("enginestats", c.EngineStats.Validate()),
		within("upstream", c.Upstream.Validate()),
		within("decisions", c.Decisions.Validate()),
		within("audit", c.Audit.Validate()),
		within("api", c.API.Validate()),
		within("tenants", c.Tenants.Validate()),
		within("gateway", c.Gateway.Validate()),
		within("admin", c.Admin.Validate()),
		within("telemetry", c.Telemetry.Validate()),
		within("reload", c.Reload.Validate()),
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
