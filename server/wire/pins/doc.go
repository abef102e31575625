// Package pins remembers which replica stores a response and which tenant owns it, because an engine's store of responses is
// in its own process.
package pins
