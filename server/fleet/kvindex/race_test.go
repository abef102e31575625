//go:build race

package kvindex_test

const underRace = true
