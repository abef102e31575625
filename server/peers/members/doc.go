// Package members keeps the list of the fleet's routers, by memberlist's gossip: which exist, where their services are, which
// wire version they speak.
//
// Members opens the addresses only when Run is called and joins in the background for as long as it runs: names are looked up
// again and again, a router's own address among them is skipped, and members that died are tried for a while, so that halves of
// a parted network meet again. Nothing that a member announces can do more than have that member refused: it is logged and
// counted. A router of another major wire version is listed as a stranger.
//
// Members is safe for concurrent use. The list is a hint: package link finds out which router really answers.
package members
