package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// section is one part that takes settings while the router runs.
type section = reload.Section[config.Config]

// sections lists the steps of a reload, in this order; together they take all of config.LivePaths. A part with a method
// Update(Config) error needs one line here, made by updates, and its settings in that table.
func (s *Server) sections() []section {
	p, at := s.parts, s.surfaces
	return []section{
		{Name: "callers", Paths: config.LiveBelow("api"), Part: clientKeys{at.callers, at.api}},
		updates("quota", func(c config.Config) error { return p.limiter.Update(c.Tenants) }, "tenants"),
		// The key files of templates are named by settings that need a restart; their contents need none.
		{Name: "registry", Paths: append(config.LiveBelow("registry"), "registry.dns", "registry.kubernetes"), Part: replicas{p.ranks.Registry}},
		updates("chooser", func(c config.Config) error { return p.chooser.Update(c.Chooser) }, "chooser"),
		updates("router", func(c config.Config) error { return p.router.Update(c.Router, c.Upstream.Retry.Attempts) }, "router", "upstream.retry"),
		updates("directory", func(c config.Config) error { return p.directory.Update(c.Directory) }, "directory"),
		updates("splits", func(c config.Config) error { return p.splits.Update(c.Splits) }, "splits"),
		updates("upstream", func(c config.Config) error {
			p.breaker.Update(c.Upstream.Breaker)
			p.retries.Update(c.Upstream.Retry)
			return p.upstream.Update(c.Upstream)
		}, "upstream"),
		updates("tokenizer", func(c config.Config) error { return p.tokens.Update(c.Tokenizer) }, "tokenizer"),
		updates("enginestats", func(c config.Config) error { return p.ranks.Stats.Update(c.EngineStats) }, "enginestats"),
		updates("gateway", func(c config.Config) error {
			at.guard.SetTimes(c.Gateway.BodyTimeout, c.Gateway.StallTimeout)
			return errors.Join(at.gateway.Update(c.Gateway), at.console.Update(c.Gateway))
		}, "gateway"),
		updates("telemetry", func(c config.Config) error { return s.telemetry.Update(c.Telemetry) }, "telemetry"),
		{Name: "listen", Paths: config.LiveBelow("listen"), Part: listeners{}},
	}
}

// takes is a part's Update, which changes nothing when it returns an error.
type takes func(next config.Config) error

// Apply implements reload.Part.
func (u takes) Apply(_, next config.Config) error { return u(next) }

// updates makes a section of a part's Update. It takes the paths of config.LivePaths below the given settings.
func updates(name string, u takes, below ...string) section {
	return section{Name: name, Paths: config.LiveBelow(below...), Part: u}
}

// errKeysOff keeps a file that lost its keys from letting every client in.
var errKeysOff = errors.New("api.keys: the new settings have no API key and would admit every caller; only a restart turns keys off")

// clientKeys applies the accepted credentials. Going back reads the keys file and the key set as they are by then.
type clientKeys struct {
	callers *callers.Callers
	api     *grpcapi.API
}

// Apply implements reload.Part.
func (k clientKeys) Apply(_, next config.Config) error {
	if err := k.callers.Update(next.API.Callers()); err != nil {
		return fmt.Errorf("api.%w", err)
	}
	k.api.UseOverrides(next.API)
	return nil
}

// Check implements reload.Checker.
func (k clientKeys) Check(_, next config.Config) error {
	c := next.API.Callers()
	if !k.callers.Open() && c.Open() {
		return errKeysOff
	}
	if _, err := callers.New(c, callers.Params{}); err != nil {
		return fmt.Errorf("api.%w", err)
	}
	return nil
}

// errNoFleet keeps a file that lost its end from taking the fleet away.
var errNoFleet = errors.New("registry.replicas: the new settings have no replica and no source of replicas; only a restart removes the last one")

// hasSource reports whether replicas may come from the settings.
func hasSource(c config.Config) bool {
	r := c.Registry
	return len(r.Replicas)+len(r.DNS)+len(r.Kubernetes)+len(r.InferencePools) > 0 || r.File != ""
}

// fleetUpdate bounds how long the registry may take to change its list.
const fleetUpdate = 10 * time.Second

// replicas applies the list of replicas.
type replicas struct{ *registry.Registry }

// Apply implements reload.Part.
func (r replicas) Apply(_, next config.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), fleetUpdate)
	defer cancel()
	return r.Update(ctx, next.Registry)
}

// Check implements reload.Checker.
func (r replicas) Check(now, next config.Config) error {
	if len(now.Registry.Replicas) > 0 && !hasSource(next) {
		return errNoFleet
	}
	if err := r.Registry.Check(next.Registry); err != nil {
		return fmt.Errorf("registry.%w", err)
	}
	return nil
}

// listeners checks certificates, which are read again by themselves. The times of draining are looked at when that begins.
type listeners struct{}

// Apply implements reload.Part.
func (listeners) Apply(_, _ config.Config) error { return nil }

// Check implements reload.Checker.
func (listeners) Check(_, next config.Config) error {
	_, err := serverTLS(next.Listen)
	return err
}
