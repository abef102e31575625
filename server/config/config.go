package config

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/edge/admin"
	"github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/server/edge/gateway"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/directory"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/memlimit"
	"github.com/kvpilot/kvpilot/server/observe/audit"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/telemetry"
	"github.com/kvpilot/kvpilot/server/peers/members"
	"github.com/kvpilot/kvpilot/server/route/placement"
	"github.com/kvpilot/kvpilot/server/route/quota"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/route/splits"
	"github.com/kvpilot/kvpilot/server/route/standby"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/upstream"
)

// Config is the tree of all settings: a struct of the parts' own structs.
type Config struct {
	// The router's addresses, and how it shuts down.
	Listen Listen `yaml:"listen"`
	// The replicas and their discovery.
	Registry registry.Config `yaml:"registry"`
	// How a request is read and sent.
	Router intake.Config `yaml:"router"`
	// Requests for a model that several sides share, such as a stable version and a canary.
	Splits splits.Config `yaml:"splits"`
	// Models that an autoscaler scales, also from zero.
	Scaling standby.Config `yaml:"scaling"`
	// LoRA adapters that are loaded on more replicas by demand.
	Adapters placement.Config `yaml:"adapters"`
	// How a replica is chosen, and how requests wait.
	Chooser chooser.Config `yaml:"chooser"`
	// How prompts become token ids.
	Tokenizer tokenizer.Config `yaml:"tokenizer"`
	Caches    `yaml:",inline"`
	// Reservations.
	Load load.Config `yaml:"load"`
	// The load that engines report.
	EngineStats enginestats.Config `yaml:"enginestats"`
	// Connections to replicas, retries, breakers.
	Upstream upstream.Config `yaml:"upstream"`
	// The other routers, and how this one works with them.
	Fleet members.Config `yaml:"fleet"`
	// The memory of decisions.
	Decisions decisionlog.Config `yaml:"decisions"`
	// The audit log: changes, rejected credentials, reads of other tenants' data.
	Audit audit.Config `yaml:"audit"`
	Front `yaml:",inline"`
	// Logs, metrics and traces.
	Telemetry telemetry.Config `yaml:"telemetry"`
	// The memory of the whole process.
	Memory memlimit.Config `yaml:"memory"`
	// How settings change while the router runs.
	Reload Reload `yaml:"reload"`
}

// Caches has the parts that know where KV cache is.
type Caches struct {
	// The index of which rank holds which KV block.
	KVIndex kvindex.Config `yaml:"kvindex"`
	// The engines' KV cache events.
	KVEvents kvevents.Config `yaml:"kvevents"`
	// A service outside kvpilot that says where prompts lie below the GPUs.
	Directory directory.Config `yaml:"directory"`
}

// Front has the parts that clients, gateways and operators reach.
type Front struct {
	// Callers' credentials, and the options that callers may set.
	API grpcapi.Config `yaml:"api"`
	// Each tenant's limits, and its share while requests wait.
	Tenants quota.Config `yaml:"tenants"`
	// The REST surface.
	Gateway gateway.Config `yaml:"gateway"`
	// The endpoint picker of gateways.
	EPP extproc.Config `yaml:"epp"`
	// The operators' surface.
	Admin admin.Config `yaml:"admin"`
}

// Default returns the defaults of every part.
func Default() Config {
	return Config{
		Listen:      DefaultListen(),
		Registry:    registry.DefaultConfig(),
		Router:      intake.DefaultConfig(),
		Splits:      splits.DefaultConfig(),
		Scaling:     standby.DefaultConfig(),
		Adapters:    placement.DefaultConfig(),
		Chooser:     chooser.DefaultConfig(),
		Tokenizer:   tokenizer.DefaultConfig(),
		Caches:      Caches{KVIndex: kvindex.DefaultConfig(), KVEvents: kvevents.DefaultConfig(), Directory: directory.DefaultConfig()},
		Load:        load.DefaultConfig(),
		EngineStats: enginestats.DefaultConfig(),
		Upstream:    upstream.DefaultConfig(),
		Fleet:       members.DefaultConfig(),
		Decisions:   decisionlog.DefaultConfig(),
		Audit:       audit.DefaultConfig(),
		Front:       Front{API: grpcapi.DefaultConfig(), Gateway: gateway.DefaultConfig(), EPP: extproc.DefaultConfig(), Admin: admin.DefaultConfig()},
		Telemetry:   telemetry.DefaultConfig(),
		Reload:      Reload{Watch: true, Versions: defaultVersions},
	}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.Within("listen", c.Listen.Validate()),
		check.Within("registry", c.Registry.Validate()),
		check.Within("router", c.Router.Validate()),
		check.Within("splits", c.Splits.Validate()),
		check.Within("scaling", c.Scaling.Validate()),
		check.Within("adapters", c.Adapters.Validate()),
		check.Within("chooser", c.Chooser.Validate()),
		check.Within("tokenizer", c.Tokenizer.Validate()),
		check.Within("kvindex", c.KVIndex.Validate()),
		check.Within("kvevents", c.KVEvents.Validate()),
		check.Within("directory", c.Directory.Validate()),
		check.Within("load", c.Load.Validate()),
		check.Within("enginestats", c.EngineStats.Validate()),
		check.Within("upstream", c.Upstream.Validate()),
		check.Within("fleet", c.Fleet.Validate()),
		check.Within("decisions", c.Decisions.Validate()),
		check.Within("audit", c.Audit.Validate()),
		check.Within("api", c.API.Validate()),
		check.Within("tenants", c.Tenants.Validate()),
		check.Within("gateway", c.Gateway.Validate()),
		check.Within("epp", c.EPP.Validate()),
		check.Within("admin", c.Admin.Validate()),
		check.Within("telemetry", c.Telemetry.Validate()),
		check.Within("memory", c.Memory.Validate()),
		check.Within("reload", c.Reload.Validate()),
	)
}
