// Package number has a float64 that many goroutines read and change.
package number
