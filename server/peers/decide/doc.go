// Package decide makes the routers of a fleet choose with one mind.
//
// Each router is a frontend: it reads, tokenizes and forwards requests. For each pool one router is the decider: the
// frontends ask it where a request goes and report the first token, progress and end, so that one load book and one hold queue
// see the whole pool. The decider of a pool is the router that all compute alike, by rendezvous hash among the able ones;
// nothing is elected. A router alone is its own decider.
//
// Routing state is advice, so nothing here may cost a request. A booking belongs to the frontend whose request it is: it gives its
// bookings to whichever router decides, again after each reconnection, and the decider releases the bookings of a frontend that stays
// away for longer than Config.Grace. Requests in a decider's hold queue wait at their frontend, too, which asks another
// router, with the request's age, when the decider is silent. A question that gets no answer within Config.Patience is
// decided by the frontend alone, and the decider is informed.
//
// Frontend and Decider exchange the messages of kvpilot.peer.v1.DecideService, but open no connection and start no goroutine besides
// Run: the owner carries the messages (SendEvent, SendReply; Reply, Event), says which peers are up, and calls Tick or
// Run. Messages between two routers must arrive in the order in which they were sent, or not at all after a Down; a message that is lost
// or reordered nevertheless is found by the sums that Ping carries, and repaired. Both types are safe for concurrent use. The functions
// in Params are called with locks held: they must not block and not call back.
package decide
