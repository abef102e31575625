// Package gateway asks the endpoint picker as gateways do: fake ones, each in its dialect, and a real Envoy where one can be had.
package gateway
