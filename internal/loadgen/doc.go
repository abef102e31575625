// Package loadgen plays conversations against an OpenAI-style endpoint and measures the users' experience: the time
// to the first token, and how much of each prompt the engine found in its cache.
//
// Run plays all conversations of a Config, a number of them at once, each turn after the answer
// of the one before: a closed loop, as people and agents make it. The text is made up from the
// seed; equal seeds give equal prompts as long as the answers are equal. Run owns its goroutines
// and ends with its context.
package loadgen
