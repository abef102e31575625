// Package follow has the observers of a booked request, each for a part that learns from it: Flight (the rank's liveness, and the withdrawal from it), Lesson
// (its speed), Stream (its conduct), Answered (the length of answers), Belief (the index), Move (the transfer of cache), Loaded (loads from tiers below the GPU), Outcome (the record) and Freed
// (the requests that wait). Each has its own state and none knows another one, except Found: the part of the prompt that the rank held.
package follow
