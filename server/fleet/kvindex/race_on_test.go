//go:build race

package kvindex_test

// raceEnabled: the detector takes five times as long and finds nothing more in long plays, which `make test` plays whole without it.
const raceEnabled = true
