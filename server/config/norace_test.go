//go:build !race

package config_test

const underRace = false
