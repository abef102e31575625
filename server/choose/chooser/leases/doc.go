// Package leases has the choices of callers outside this process by the name of their reservation, so that reports find them. They end with their
// lease.
package leases
