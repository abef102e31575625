// Package chaos takes replicas away from running routers, and routers from their fleet, in the ways in which machines do, with real processes, real
// signals and real time, and measures the effects on clients. make chaos runs it; docs/operations.md has its figures.
package chaos
