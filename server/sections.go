package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// section is one part that takes settings while the router runs.
type section = reload.Section[config.Config]

// sections lists what a reload applies, in this order; together they take all of config.LivePaths. A part with a method
// Update(Config) error needs one line here, made by updates, and its settings in that table.
func (s *Server) sections() []section {
	p, at := s.parts, s.surfaces
	return []section{
		s.callersSection(),
		updates("quota", func(c config.Config) error { return p.limiter.Update(c.Tenants) }, "tenants"),
		s.registrySection(),
		updates("chooser", func(c config.Config) error { return p.chooser.Update(c.Chooser) }, "chooser"),
		updates("router", func(c config.Config) error { return p.router.Update(c.Router, c.Upstream.Retry.Attempts) }, "router", "upstream.retry"),
		updates("upstream", func(c config.Config) error {
			p.breaker.Update(c.Upstream.Breaker)
			p.retries.Update(c.Upstream.Retry)
			return p.upstream.Update(c.Upstream)
		}, "upstream"),
		updates("tokenizer", func(c config.Config) error { return p.tokens.Update(c.Tokenizer) }, "tokenizer"),
		updates("enginestats", func(c config.Config) error { return p.stats.Update(c.EngineStats) }, "enginestats"),
		updates("gateway", func(c config.Config) error {
			at.guard.SetTimes(c.Gateway.BodyTimeout, c.Gateway.StallTimeout)
			return errors.Join(at.gateway.Update(c.Gateway), at.console.Update(c.Gateway))
		}, "gateway"),
		updates("telemetry", func(c config.Config) error { return s.telemetry.Update(c.Telemetry) }, "telemetry"),
		s.listenSection(),
	}
}

// updates makes a section of a part's Update, which changes nothing when it returns an error. Going back is an Update too.
// The section takes what config.LivePaths has below the given settings.
func updates(name string, update func(config.Config) error, below ...string) section {
	return section{Name: name, Paths: config.LiveBelow(below...), Apply: func(now, next config.Config) (func() error, error) {
		if err := update(next); err != nil {
			return nil, err
		}
		return func() error { return update(now) }, nil
	}}
}

// errKeysOff keeps a file that lost its keys from letting every client in.
var errKeysOff = errors.New("api.keys: the new settings have no API key and would admit every caller; only a restart turns keys off")

// callersSection applies the accepted credentials. Going back reads the keys file and the key set as they are by then.
func (s *Server) callersSection() section {
	at := s.surfaces
	update := updates("callers", func(c config.Config) error {
		if err := at.callers.Update(c.API.Callers()); err != nil {
			return fmt.Errorf("api.%w", err)
		}
		at.api.UseOverrides(c.API)
		return nil
	}, "api")
	update.Check = func(_, next config.Config) error {
		c := next.API.Callers()
		if !at.callers.Open() && c.Open() {
			return errKeysOff
		}
		if _, err := callers.New(c, callers.Params{Log: slog.New(slog.DiscardHandler)}); err != nil {
			return fmt.Errorf("api.%w", err)
		}
		return nil
	}
	return update
}

// errNoFleet keeps a file that lost its end from taking the fleet away.
var errNoFleet = errors.New("registry.replicas: the new settings have no replica and no source of replicas; only a restart removes the last one")

// hasSource reports whether replicas may come from the settings.
func hasSource(c config.Config) bool {
	r := c.Registry
	return len(r.Replicas)+len(r.DNS)+len(r.Kubernetes) > 0 || r.File != ""
}

// fleetUpdate bounds how long the registry may take to change its list.
const fleetUpdate = 10 * time.Second

func (s *Server) registrySection() section {
	update := updates("registry", func(c config.Config) error {
		ctx, cancel := context.WithTimeout(context.Background(), fleetUpdate)
		defer cancel()
		return s.parts.registry.Update(ctx, c.Registry)
	}, "registry")
	// The key files of templates are named by settings that need a restart; what is in them does not.
	update.Paths = append(update.Paths, "registry.dns", "registry.kubernetes")
	update.Check = func(now, next config.Config) error {
		if len(now.Registry.Replicas) > 0 && !hasSource(next) {
			return errNoFleet
		}
		if err := s.parts.registry.Check(next.Registry); err != nil {
			return fmt.Errorf("registry.%w", err)
		}
		return nil
	}
	return update
}

// listenSection checks certificates, which are read again by themselves. The times of draining are looked at when that begins.
func (s *Server) listenSection() section {
	return section{
		Name: "listen", Paths: config.LiveBelow("listen"),
		Check: func(_, next config.Config) error {
			_, err := serverTLS(next.Listen)
			return err
		},
		Apply: func(_, _ config.Config) (func() error, error) { return func() error { return nil }, nil },
	}
}
