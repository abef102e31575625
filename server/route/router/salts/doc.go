// Package salts gives each tenant a cache_salt of its own, so that engines share no block between tenants, and knows the routes and the
// versions of vLLM that take one.
//
// A salt depends on the fleet's secret, the tenant and the caller's own salt alone: every router of a fleet derives the same one, no client
// can guess it, and it says nothing of the tenant. The package keeps a bounded number of salts; it calls nothing and never fails.
package salts
