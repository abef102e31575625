// Package tunnel passes the bytes of a client and of a replica that have both switched to another protocol, until one of the two ends the
// connection, the context ends, or nothing has passed for a time.
//
// The bytes pass as they are. Of a WebSocket the package sees whether one side had sent the message that closes it, so that an end that was
// agreed differs from a connection that broke.
package tunnel
