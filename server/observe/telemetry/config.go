package telemetry

import (
	"errors"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// Config has the settings of an operator.
type Config struct {
	// ServiceName is the service.name of spans and metrics. While it is "kvpilot", OTEL_SERVICE_NAME overrides it.
	ServiceName string `yaml:"service_name"`
	// LogLevel is the lowest level that is logged: debug, info, warn or error.
	LogLevel string `yaml:"log_level"`
	// LogFormat is the format of the log: text or json.
	LogFormat string `yaml:"log_format"`
	// Metrics says what /metrics shows.
	Metrics Metrics `yaml:"metrics"`
	// Traces says where spans are sent and which are kept.
	Traces Traces `yaml:"traces"`
}

// Metrics configures what /metrics shows.
type Metrics struct {
	// NativeHistograms adds native histograms to the classic ones, for Prometheus with scrape_native_histograms:
	// quantiles then err by some percent, whatever the latency. Every measurement is recorded twice.
	NativeHistograms bool `yaml:"native_histograms"`
	// EPPPool repeats the metrics that Gateway API's endpoint picker has too under the picker's names (inference_objective_*,
	// inference_pool_*, llm_d_router_epp_*), with this as the name of the inference pool. Empty: not.
	EPPPool string `yaml:"epp_pool"`
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
	// Token is the bearer token that is sent with every export.
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

// Validate reports every invalid field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		check.OneOf("log_level", c.LogLevel, "debug", "info", "warn", "error"),
		check.OneOf("log_format", c.LogFormat, "text", "json"),
		check.OneOf("traces.protocol", c.Traces.Protocol, "grpc", "http"),
		check.Between("traces.ratio", c.Traces.Ratio, 0, 1),
		check.AtLeast("traces.slow", c.Traces.Slow, 0),
		check.NotEmpty("service_name", c.ServiceName),
	)
}
