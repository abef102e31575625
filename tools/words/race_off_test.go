//go:build !race

package main

import "testing"

// reads marks a test that reads all sources on one goroutine.
func reads(*testing.T) {}
