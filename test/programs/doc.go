// Package programs helps tests of programs that run as processes. It imports nothing of the server, so that these tests
// are soon linked.
package programs
