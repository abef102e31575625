// Package fleet joins the parts that make several routers one: members and links, the frontend and the decider, facts, limits and
// the pull of an index. It holds no state of requests; each part has its own.
//
// A Fleet implements the interfaces that those parts need of each other: each of them declares a small interface, and New passes the
// Fleet, or the part itself. A router without fleet.listen has no Fleet.
package fleet
