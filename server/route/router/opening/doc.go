// Package opening keeps the beginning of an answer from the client as long as it may turn out to be worth nothing: an answer without a
// token, for which another replica may have one, and a stream that begins with an error because the replica could not read the cache that
// it was to decode from.
//
// An Opening gets the pieces of one answer in their order and returns the bytes that can go to the client. It keeps a bounded number of
// them, and passes on the rest as it comes.
package opening
