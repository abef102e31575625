// Package quota keeps tenants to their limits: requests per second, tokens per minute, requests in flight, tokens
// reserved by callers that send requests themselves, and the highest priority that may be claimed. It also knows
// each tenant's weight in the hold queue.
//
// A request has one Grant. Admit counts it when it arrives, Book books the tokens that it is predicted to take, and
// Settle replaces them by what it took; a Grant is settled exactly once, however the request ends. The buckets
// are this package's own: a booking that is corrected when its request ends may leave one below zero, and routers hand levels over to
// each other.
//
// Limiter has the accounts of all tenants of a router that stands alone. In a fleet, which it joins with Join, each account has one
// owner among the routers; the others take from leases and ask the owner for more (part.go, lease.go, lend.go; package grants carries
// the reports). All methods are safe for concurrent use.
package quota
