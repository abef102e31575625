package admin

import (
	"errors"
	"net/url"
	"strings"

	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config has the settings of an operator. Defaults live in DefaultConfig alone.
type Config struct {
	// Profiles serves Go's profiles under /debug/pprof/, to the role admin. They reveal the process's memory, prompts
	// included.
	Profiles bool `yaml:"profiles"`
	// Console serves the page at /console and its RPCs below /kvpilot/v1/, to the role observe, and Drain, to the role admin.
	Console bool `yaml:"console"`
	// Links names other programs for the console to link to.
	Links Links `yaml:"links"`
	// KeyedMetrics requires the role observe at /metrics, where callers need credentials.
	KeyedMetrics bool `yaml:"keyed_metrics"`
	// KeyedHealth requires the role observe at /healthz, /livez and /readyz, where callers need credentials.
	KeyedHealth bool `yaml:"keyed_health"`
}

// DefaultConfig has the console on: the admin address is the loopback's unless the operator says otherwise.
func DefaultConfig() Config { return Config{Console: true} }

// Links are templates of URLs, of http or https. An empty one is no link.
type Links struct {
	// Trace leads from a trace's id to the program that keeps traces, for example https://jaeger.example/trace/{trace_id}.
	Trace string `yaml:"trace"`
	// Dashboard leads to a dashboard; {model} and {replica} stand for names, for example
	// https://grafana.example/d/kvpilot?var-model={model}&var-replica={replica}.
	Dashboard string `yaml:"dashboard"`
}

// Validate returns an error for invalid settings.
func (c Config) Validate() error {
	return check.Within("links", errors.Join(
		template("trace", c.Links.Trace, "{trace_id}"),
		template("dashboard", c.Links.Dashboard, "{model}", "{replica}"),
		check.That(c.Links.Trace == "" || strings.Contains(c.Links.Trace, "{trace_id}"), "trace", "must contain {trace_id}, so that each trace has its own address"),
	))
}

// template returns an error when text, in which names may stand, is no address that a browser may be led to.
func template(setting, text string, names ...string) error {
	for _, name := range names {
		text = strings.ReplaceAll(text, name, "x")
	}
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	return check.That(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.ContainsAny(text, "{}"), setting,
		"must be a URL of http or https with no other names in braces than %s, not %q", strings.Join(names, " and "), text)
}
