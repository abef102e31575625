package extproc

import (
	"errors"

	"github.com/kvpilot/kvpilot/server/kit/check"
	"github.com/kvpilot/kvpilot/server/kit/quantity"
)

// The values of Config.TLS.
const (
	TLSOff        = "off"
	TLSSelfSigned = "self-signed"
	TLSFiles      = "files"
)

// The values of Config.Response.
const (
	ResponseFull    = "full"
	ResponseHeaders = "headers"
	ResponseSkip    = "skip"
)

// Config is what an operator may set. Defaults live in DefaultConfig alone.
type Config struct {
	// Listen is the address of the endpoint picker (Envoy's external processing protocol), usually port 9002. Empty: no such surface.
	Listen string `yaml:"listen"`
	// Health is a second address of the picker's gRPC health service, without TLS, usually port 9003. Empty: only the address of listen.
	Health string `yaml:"health"`
	// TLS is how the address of listen uses TLS: self-signed (a certificate made at each start, for gateways that verify none), files
	// (tls_cert and tls_key) or off.
	TLS string `yaml:"tls"`
	// TLSCert names a PEM file with the certificate. It is read again when it changes. Empty: listen.tls_cert.
	TLSCert string `yaml:"tls_cert"`
	// TLSKey names a PEM file with the key of tls_cert. It is read again when it changes. Empty: listen.tls_key.
	TLSKey string `yaml:"tls_key"`
	// Response is how much of each answer is read: full (predictions learn, and the booking ends with the answer), headers (its status
	// only) or skip (nothing, which costs the gateway least). Without the end, a booking lasts for its predicted time.
	Response string `yaml:"response"`
	// Endpoints is how many replicas a gateway is named, the best first. Some gateways (agentgateway) accept one only.
	Endpoints int `yaml:"endpoints"`
	// ChunkBytes limits a piece of a body that goes back to the gateway; some versions of Envoy reject pieces of 64 KiB.
	ChunkBytes quantity.Bytes `yaml:"chunk_bytes"`
	// MaxBodyBytes limits a request body that a gateway sends; larger ones are rejected with 413. Zero: gateway.max_body_bytes.
	MaxBodyBytes quantity.Bytes `yaml:"max_body_bytes"`
	// Subset limits the choice to the endpoints that the gateway names (x-gateway-destination-endpoint-subset).
	Subset bool `yaml:"subset"`
	// Prefiller lets requests be split between two replicas: the header x-prefiller-host-port names the one that computes the prompt. It
	// needs llm-d's routing sidecar before each replica with a kv_connector (docs/gateway-api.md), and response: full.
	Prefiller bool `yaml:"prefiller"`
	// Objectives gives requests with an inference objective (x-llm-d-inference-objective) its priority, higher first. Other names may
	// come from the InferenceObjectives of registry.inference_pools.
	Objectives map[string]int `yaml:"objectives"`
}

// mostEndpoints bounds the list of addresses, which is a header.
const mostEndpoints = 16

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{TLS: TLSSelfSigned, Response: ResponseFull, Endpoints: 1, ChunkBytes: 62000, Subset: true}
}

// Validate reports every bad field at once, named as the operator wrote it.
func (c Config) Validate() error {
	return errors.Join(
		address("listen", c.Listen), address("health", c.Health),
		check.That(c.Health == "" || c.Listen != "", "health", "has no effect unless listen is set"),
		check.OneOf("tls", c.TLS, TLSOff, TLSSelfSigned, TLSFiles),
		check.That((c.TLSCert == "") == (c.TLSKey == ""), "tls_cert", "tls_cert and tls_key must be set together"),
		check.That(c.TLSCert == "" || c.TLS == TLSFiles, "tls_cert", "has no effect unless tls is files"),
		check.OneOf("response", c.Response, ResponseFull, ResponseHeaders, ResponseSkip),
		check.That(!c.Prefiller || c.Response == ResponseFull, "prefiller", "needs response: full, to see when the prompt was computed"),
		check.Between("endpoints", c.Endpoints, 1, mostEndpoints),
		check.AtLeast("chunk_bytes", c.ChunkBytes, 1<<10),
		check.AtLeast("max_body_bytes", c.MaxBodyBytes, 0),
	)
}

func address(setting, value string) error {
	if value == "" {
		return nil
	}
	return check.Address(setting, value)
}
