// Package rank has the chooser's record of each rank: its speed, the prefill routed to it lately, its conduct and its liveness. Readers take
// no lock: every choice reads every rank.
package rank
