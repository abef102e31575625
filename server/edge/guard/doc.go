// Package guard bounds what callers may hold: memory for messages that arrive, calls without a
// reader, and what is done before a caller is known.
//
// Budget counts the bytes of the request bodies of all listeners. Guard protects a grpc.Server: it
// checks a call's key before any of its message is read, ends calls that take too long to send or
// to receive, and decodes messages within the budget. CheckHost and CrossOrigin protect HTTP
// listeners from web pages.
//
// A Budget and a Guard are safe for concurrent use. Guard.Run is the only goroutine; without it
// nothing ends calls that stall.
package guard
