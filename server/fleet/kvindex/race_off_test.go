//go:build !race

package kvindex_test

const raceEnabled = false
