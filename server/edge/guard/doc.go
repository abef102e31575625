// Package guard bounds the callers' use of resources: memory for messages that arrive, calls without a
// reader, and work before a caller is known.
//
// Guard protects a grpc.Server: it checks a call's key before any of its message is read, charges the
// call, its messages and its answer to the caller's account in the ledger, and ends calls that take too long to
// send or to receive. Of methods without credentials (health, reflection) it allows few calls at once. CheckHost and
// CrossOrigin protect HTTP listeners from web pages; Counted and StallTimeout bound the memory of their answers.
//
// A Guard is safe for concurrent use. Guard.Run is the only goroutine; without it nothing ends calls that stall.
package guard
