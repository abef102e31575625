// Package tenantbench measures how tenants share a fleet: a router and simulated replicas as processes of their own,
// two tenants that always have more to send, and a third that sends a request now and then.
package tenantbench
