// Package guard bounds what callers may hold: memory for messages that arrive, calls without a
// reader, and what is done before a caller is known.
//
// Guard protects a grpc.Server: it checks a call's key before any of its message is read, charges the
// call, its messages and its answer to the caller's account in the ledger, and ends calls that take too long to
// send or to receive. Of methods without credentials (health, reflection) it allows few calls at once. CheckHost and
// CrossOrigin protect HTTP listeners from web pages; Counted and StallTimeout bound what their answers hold.
//
// A Guard is safe for concurrent use. Guard.Run is the only goroutine; without it nothing ends calls that stall.
package guard
