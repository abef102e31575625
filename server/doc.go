// Package server builds every part of a router from one configuration and gives them life.
//
// New wires the parts and opens nothing; Run serves until its context ends and returns nil
// then, or the first error of any part. Shutdown has one order, known only here: not ready,
// stop accepting, drain streams within the deadline, stop background work, flush telemetry.
//
// The packages below server are kvpilot's own: they promise third parties nothing. Use
// client/ and gen/ instead.
package server
