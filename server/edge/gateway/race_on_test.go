//go:build race

package gateway_test

// raceEnabled: the detector makes stacks larger.
const raceEnabled = true
