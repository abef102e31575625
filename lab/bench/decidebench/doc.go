// Package decidebench measures the cost of a decision to the service: the same questions over gRPC and as JSON over REST,
// asked of a router in a process of its own whose index was filled by KV events.
//
// Run starts the engines and the router, asks, and reports processor time of the router, latencies and rates. The
// caller's own process is the client.
package decidebench
