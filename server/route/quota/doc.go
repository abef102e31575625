// Package quota keeps tenants to their limits: requests per second, tokens per minute, requests in flight, tokens
// reserved by callers that send requests themselves, and the highest priority that may be claimed. It also knows
// each tenant's weight in the hold queue.
//
// A request has one Grant. Admit counts it when it arrives, Book books the tokens that it is predicted to take, and
// Settle replaces them by what it took; a Grant is settled exactly once, however the request ends. Requests
// per second are golang.org/x/time/rate's; the bucket of tokens is this package's own, because a booking that is
// corrected when its request ends may leave the bucket below zero, which that one cannot.
//
// Owner is the interface for a fleet of routers: the router that owns a tenant keeps its buckets. Limiter is the owner of
// every tenant in a router that stands alone. All methods are safe for concurrent use.
package quota
