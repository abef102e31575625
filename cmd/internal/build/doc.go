// Package build describes the build of the running program: its version, the commit that it was made from, Go and the platform.
//
// Read is the one source: the command version, the start line, metrics, traces and the console show what it returns.
package build
