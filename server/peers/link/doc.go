// Package link connects this router with each other router of its fleet and carries their messages to each other.
//
// Between two routers there are two connections, one dialed by each. The router that dials is the frontend of a Decide stream,
// the router that answers is its decider: Links has both halves, and calls Params.Frontend and Params.Decider when a half is up or
// down and with each message that arrives. Calls about one half come in order from one goroutine, Up first and Down last;
// messages of one half keep their order, and waiting ones travel together. SendEvent and SendReply never block: a peer
// for which more than a bound is waiting loses its link.
//
// A link is up once both ends have said their ids and those are the ids of their certificates, so that an address that leads
// to another router is refused. Broken links are dialed again, for as long as package members lists the router. Links is safe
// for concurrent use; Run owns all goroutines. The routers' other services are on the same connections: Conn and Offer.
package link
