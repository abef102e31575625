// Package history is a router's memory of its recent past: outcomes by time, and the last traces.
//
// History counts outcomes as they come, five minutes by the second and an hour in coarse steps; Traces keeps the spans of
// the last requests. Both take constant memory and are safe for concurrent use.
package history
