// Package warm brings the index of a router that has just started to its peers' state.
//
// Warm pulls the index of the ablest peer, as kvindex's snapshot with the positions of the ranks' event feeds: each feed then
// continues where the peer's stands and is exact once its engine has replayed the later batches. It tries each able peer once. Complete
// parts are used; for the rest, and without a peer, the feeds read the engines' replays. The router serves from the start and does not
// wait for any of it. Later it looks every few seconds whether a rank is not exact, and pulls that from a peer that knows it.
//
// PullIndex is the other side: it sends this router's index in bounded pieces, one rank's copy in memory at a time, while events
// continue. Run does the pulling and returns when ctx ends; all methods are safe for concurrent use.
package warm
