//go:build race

package resume_test

// raceEnabled: a follower is used by one goroutine, so that the detector finds nothing in a stream that is cut at each byte that
// it does not find in one that is cut at each fifth. `make test` cuts at each byte without it.
const raceEnabled = true
