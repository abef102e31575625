package config

import (
	"reflect"
	"slices"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/reload"
)

// Reload says how changed settings are noticed and remembered.
type Reload struct {
	// Watch applies changes of the settings file, and of the key files that it names, automatically. SIGHUP and
	// kvpilot reload apply them at any time.
	Watch bool `yaml:"watch"`
	// Versions is the number of versions of the settings that are remembered, for kvpilot config rollback.
	Versions int `yaml:"versions"`
}

const (
	defaultVersions = 16
	maxVersions     = 1000
)

// Validate reports every bad field at once.
func (r Reload) Validate() error {
	return check.Between("versions", r.Versions, 1, maxVersions)
}

// LivePaths are the settings that a reload applies, each with all below it; the others need a restart. It is the one table of
// them: the sections of package server take theirs from it, and docs/config.md marks its settings.
func LivePaths() []string {
	return []string{
		"listen.drain_delay", "listen.drain_timeout",
		"registry.replicas", "registry.aliases", "registry.access", "registry.pools",
		"registry.probe.path", "registry.probe.interval", "registry.probe.max_interval", "registry.probe.timeout", "registry.probe.up",
		"registry.probe.down", "registry.probe.models_interval",
		"registry.registration.lease", "registry.registration.max_lease", "registry.registration.max", "registry.registration.max_ranks",
		"registry.registration.networks",
		"router.session_header", "router.session_headers", "router.tokenize_timeout", "router.max_messages", "router.max_members", "router.resume_streams", "router.resume_messages", "router.resume_unstreamed", "router.headers",
		"router.realtime_idle", "router.show_overlap", "router.unsalted_routes", "router.unowned_responses",
		"chooser.policy", "chooser.objective", "chooser.slo", "chooser.weights", "chooser.shadow", "chooser.models", "chooser.hold_above", "chooser.session_ttl",
		"chooser.max_requests_per_rank", "chooser.stall", "chooser.queue",
		"splits", "directory",
		"tokenizer.remote.timeout",
		"enginestats.interval", "enginestats.timeout",
		"upstream.dial_timeout", "upstream.response_header_timeout", "upstream.stall_timeout", "upstream.retry", "upstream.breaker",
		"api.keys", "api.keys_file", "api.jwt", "api.certificates", "api.overrides", "api.open_adapters", "tenants",
		"gateway.body_timeout", "gateway.stall_timeout", "gateway.sse_keep_alive",
		"telemetry.log_level", "telemetry.traces.ratio", "telemetry.traces.trust_parent", "telemetry.traces.slow",
	}
}

// LiveBelow are the paths of LivePaths below one of the given settings.
func LiveBelow(settings ...string) []string {
	return slices.DeleteFunc(LivePaths(), func(path string) bool {
		return !slices.ContainsFunc(settings, func(s string) bool { return reload.Below(s, path) })
	})
}

// live reports whether a reload of now applies the setting.
func live(now *Config, path string) bool {
	switch {
	case path == "telemetry.traces.ratio" && now.Telemetry.Traces.Ratio == 0:
		return false // nothing records traces then
	}
	return applies(path)
}

// applies reports whether a setting is one of LivePaths.
func applies(path string) bool {
	for _, p := range LivePaths() {
		if reload.Below(p, path) {
			return true
		}
	}
	return false
}

// Merge returns now with the settings of next that a reload applies.
func Merge(now, next Config) Config {
	out := now
	from := reflect.ValueOf(&next).Elem()
	var take func(to, from reflect.Value, path string)
	take = func(to, from reflect.Value, path string) {
		if !scalar(to) && to.Kind() == reflect.Struct {
			for _, f := range settingsOf(to.Type()) {
				take(to.FieldByIndex(f.Index), from.FieldByIndex(f.Index), join(path, tagOf(f)))
			}
			return
		}
		if live(&now, path) {
			to.Set(from)
		}
	}
	take(reflect.ValueOf(&out).Elem(), from, "")
	return out
}
