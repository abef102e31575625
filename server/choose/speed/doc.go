// Package speed learns how long a rank's engine takes: to prefill a prompt and to decode a step.
//
// A Rank is shown every booking, first token and end of its requests and keeps an account of the
// engine's busy time: the work that was finished, and the time that it took. Work and time are
// summed over everything that the engine computes in between, so that first tokens which leave one
// engine step together, or overtake each other on their way, change no sum. Each piece of the
// account is a sample. Samples are evidence, with the counts of the engine, the reports of callers outside
// of the fleet and the Model of another router; a robust fit of the evidence gives the Model, and trust says
// how far that is shown.
//
// Ranks of one kind (the same model on the same hardware) share their knowledge: a rank that has
// seen little is taken to be like its equals, and one that disagrees with them by more than a
// factor of two must prove it.
//
// All types are safe for concurrent use. Model reads take no lock. The package performs no I/O and
// reads no clock: times are passed in.
package speed
