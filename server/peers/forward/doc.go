// Package forward passes calls on to the other routers of a fleet, so that each router answers for all of them.
//
// The id of a decision or reservation begins with the id of the router that made it: Owner. State of a pool that one router has is at its
// decider: Decider. State that each router has a part of is asked of all of them at once, for a bounded time: Gather; Join makes one
// record of two routers' records of a decision.
//
// Send puts the identity of a call's sender on the way to another router and Received reads it there. It is believed only on the listener of the
// peers, which lets in nothing but routers of the fleet. A call that came over it is never passed on again, so there are no loops.
//
// An Announcer has the other routers repeat the steps of a rule at this router.
//
// A nil *Fleet is a router without a fleet: it has no owners, deciders or others. Fleet is safe for concurrent use and owns no
// goroutine that outlives a call; an Announcer sends in its Run.
package forward
