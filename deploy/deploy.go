// Package deploy holds the files of this folder that programs use: the manifests that kvpilot init --kubernetes writes, and the Envoy that the benchmark starts.
package deploy

import "embed"

// Base is the folder kubernetes/base: the routers without their engines.
//
//go:embed kubernetes/base/*.yaml
var Base embed.FS

// Envoy is envoy/envoy.yaml: a stand-alone Envoy that asks kvpilot for a replica.
//
//go:embed envoy/envoy.yaml
var Envoy string
