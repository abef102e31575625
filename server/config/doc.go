// Package config reads the operator's settings into one tree of the parts' own Config structs.
//
// Order, later wins: defaults, the YAML file, environment variables with mechanical names
// (KVPILOT_ROUTER_MAX_BODY_BYTES for router.max_body_bytes), then --set flags. Unknown keys and
// variables are errors, everything is validated before a socket opens, and every bad field is
// reported at once under the name that the operator wrote. It is the only reader of files and
// environment; docs/config.md is generated from it.
package config
