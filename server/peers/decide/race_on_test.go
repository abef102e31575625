//go:build race

package decide_test

// raceEnabled: each fleet of these tests is played by one goroutine, in which the detector finds nothing. `make test` plays all
// seeds without it.
const raceEnabled = true
