// Package programs has what tests of programs need that run as processes of their own. It imports nothing of the server, so that these tests
// are soon linked.
package programs
