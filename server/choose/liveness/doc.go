// Package liveness judges whether the engine behind a rank still works, though its replica may answer health probes.
//
// A Monitor follows one rank: the requests in flight there, the signs of life that come back for them, and what others read of the
// engine (Vitals). Look judges it at each round and returns the Evidence that it stalled. It also lists the requests that should
// move elsewhere and the bookings of external callers whose requests the engine does not report.
//
// Sign, Avoided, Enter, Leave, Lend and Settle are safe for concurrent use; Look, Movable and Missing belong to one
// goroutine. The package reads no clock and moves no request: that is package chooser's work.
package liveness
