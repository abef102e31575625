// Command attack runs hostile clients, tenants, replicas and peers against a real kvpilot serve next to three honest tenants, and
// checks one property: no party's traffic changes another party's answers or times beyond fair sharing.
//
// Each attack has a fleet of its own: simulated replicas (kvpilot sim) as processes, in front of some of them a proxy that
// misbehaves, and a router as a process with memory.max_bytes set. The honest tenants send at constant rates, first undisturbed,
// then while another router of the same replicas is attacked (attackers, router and load share the processors of one machine), then during the attack at
// their own. An attack holds when no honest request fails, when the 99th percentile of the honest answers is at most
// twice that without the attack at their router, when the router's resident memory stays below its bound, and when the attack's own check finds nothing.
//
//	go run ./lab/attack                     all attacks, about ten minutes; make attack does the same
//	go run ./lab/attack -fast               the short ones, times reported and not judged
//	go run ./lab/attack -only poison,liar   some of them, by parts of their names
//	go run ./lab/attack -list               their names
//
// It is for Linux (it reads /proc) and uses the loopback alone: honest tenants at 127.0.0.1, attackers at 127.0.0.66. All that it
// starts ends with it.
package main
