//go:build !race

package splits_test

const raceEnabled = false
