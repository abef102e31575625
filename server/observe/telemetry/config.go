package telemetry

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
)

// Config is what an operator may set.
type Config struct {
	// ServiceName is the service.name of spans and metrics. While it is "kvpilot", OTEL_SERVICE_NAME overrides it.
	ServiceName string `yaml:"service_name"`
	// LogLevel is the lowest level that is logged: debug, info, warn or error.
	LogLevel string `yaml:"log_level"`
	// LogFormat is the format of the log: text or json.
	LogFormat string `yaml:"log_format"`
	// Traces says where spans are sent and which are kept.
	Traces Traces `yaml:"traces"`
}

// Traces configures tracing.
type Traces struct {
	// Endpoint is an OTLP endpoint: host:port for grpc, a URL for http. Empty: OTEL_TRACES_EXPORTER and
	// OTEL_EXPORTER_OTLP_ENDPOINT select the exporter; without these, spans are not exported.
	Endpoint string `yaml:"endpoint"`
	// Protocol is the protocol of endpoint: grpc or http.
	Protocol string `yaml:"protocol"`
	// Insecure sends spans without TLS.
	Insecure bool `yaml:"insecure"`
	// Token is sent as a bearer token with every export.
	Token secret.String `yaml:"token"`
	// Ratio is the share of traces kept when the caller did not decide, from 0 to 1.
	Ratio float64 `yaml:"ratio"`
	// TrustParent lets callers decide by traceparent whether their request's trace is kept; otherwise ratio decides
	// for all.
	TrustParent bool `yaml:"trust_parent"`
	// Slow keeps the trace of any request that took longer, sampled or not. Zero: no such rule.
	Slow time.Duration `yaml:"slow"`
}

// DefaultConfig logs text at info and exports no spans.
func DefaultConfig() Config {
	return Config{
		ServiceName: "kvpilot",
		LogLevel:    "info",
		LogFormat:   "text",
		Traces:      Traces{Protocol: "grpc", Insecure: true, Ratio: 0.01, TrustParent: true, Slow: 10 * time.Second},
	}
}

// Validate reports every bad field, named as the operator wrote it.
func (c Config) Validate() error {
	var errs []error
	oneOf := func(name, got string, allowed ...string) {
		if !slices.Contains(allowed, got) {
			errs = append(errs, fmt.Errorf("%s: must be one of %v, not %q", name, allowed, got))
		}
	}
	oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("log_format", c.LogFormat, "text", "json")
	oneOf("traces.protocol", c.Traces.Protocol, "grpc", "http")
	if c.Traces.Ratio < 0 || c.Traces.Ratio > 1 {
		errs = append(errs, fmt.Errorf("traces.ratio: must be from 0 to 1, not %v", c.Traces.Ratio))
	}
	if c.Traces.Slow < 0 {
		errs = append(errs, errors.New("traces.slow: must not be negative"))
	}
	if c.ServiceName == "" {
		errs = append(errs, errors.New("service_name: must not be empty"))
	}
	return errors.Join(errs...)
}
