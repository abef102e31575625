// Package clock is the time of a chooser: the load book's clock, and a scale in nanoseconds since the start, which fits in an atomic word.
package clock
