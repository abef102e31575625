// Package directorytest has stand-ins for the services that package directory asks, for its tests and the tests of the router. They check the fields of
// a question as LMCache's coordinator (0.5.6) and Mooncake's conductor do, and answer with all members that these have. They are safe for concurrent
// use.
package directorytest
