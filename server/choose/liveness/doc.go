// Package liveness judges whether the engine behind a rank still works, though its replica may answer health probes.
//
// A Monitor follows one rank: the requests in flight there, the progress that they make, and the Vitals of the engine, which other
// packages read. Look judges it at each round and returns the Evidence that it stalled. It also lists the requests that should move
// elsewhere and the bookings of external callers with requests that the engine does not report.
//
// Sign, Avoided, Enter, Leave, Lend and Settle are safe for concurrent use; Look, Movable and Missing belong to one
// goroutine. The package reads no clock and moves no request: that is package chooser's work.
package liveness
