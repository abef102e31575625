//go:build race

package splits_test

// raceEnabled: the detector finds nothing in 60 plays of chance on one goroutine that it does not find in ten. `make test` plays
// all of them without it.
const raceEnabled = true
