// Package deploy holds the manifests of this folder that the program writes for kvpilot init --kubernetes.
package deploy

import "embed"

// Base is the folder kubernetes/base: the routers without their engines.
//
//go:embed kubernetes/base/*.yaml
var Base embed.FS
