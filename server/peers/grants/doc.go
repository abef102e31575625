// Package grants shares the limits of tenants between the routers of a fleet, so that they hold for the fleet.
//
// Each tenant's account has one owner: of the routers that this one reaches, the router with the highest hash of tenant and router id, able
// ones first. The owner counts; the others hold leases: amounts that they have taken from the account and give to requests without a
// question. A router reports to the owners four times a second, at once when requests wait for more than it has, and at once when it has
// something back that others may lack. Sums and sequence numbers make reports that are lost, late or repeated harmless.
//
// Owners send the state of their accounts to all routers, which continue from it when the owner is gone. A router that does not reach
// all others that were seen lately takes part in a share of the limits only: the routers that it reaches, by all of them. View has
// both.
//
// The accounts themselves are package quota's, which implements Accounts. Grants owns the calls to other routers. All methods are
// safe for concurrent use; Run owns all goroutines.
package grants
