// Package sequence follows the numbered batches of one engine. It is a step machine: Machine.Step moves a State by one
// Event and returns the Effects that the caller has to execute. It has no socket, no clock, no randomness and no
// goroutine: times are part of events, and equal states and events give equal states and effects.
//
// The caller reads the sockets, decodes batches and runs the replays that Ask demands. The states of a feed that Show
// reports are the states of package kvevents.
package sequence
