// Package doctor tests a real set-up of a router and its replicas, and says what to change.
//
// A check answers one question, such as "does every replica turn the same text into the same token ids?". It has a name, and its
// run returns Findings: the expectation of a subject (a replica, a rank, the router itself), the observation, and the change to make.
// Checks run at the same time; one that needs others waits for them, and skips the subjects that failed there, so that a
// fault is reported by the check that it belongs to, and once.
//
// Local tests the set-up that settings describe, from the machine that it runs on: it builds the router's own parts
// (server.Observer) and asks through them, so that it sees the same as a router would. Remote reports how a running router
// sees its replicas. Neither changes anything, but for a request of one output token to each rank, unless that is switched off.
package doctor
