// Package layout lays a request's list of replicas out by rank: the facts of each rank that its replica knows, the vetoes by state and model, and the
// pairs of ranks that can pass cache to each other. A layout is made when the pool changes, not for each request.
package layout
