// Package demand says how many replicas each pool needs, by the predicted work of its requests.
//
// Demand.Decision adds a request's work, in seconds of one replica: the predicted time to compute its prompt, and the part of the replica's KV
// memory that its answer takes, for as long as that is predicted to last. Work per second is the load that is offered, whether or not there
// are replicas for it: the wanted replicas are that load at the utilization that the operator wants, with as many more as serve the waiting requests
// soon. Work of the last minute counts most; older work is forgotten exponentially.
//
// All methods are safe for concurrent use. Memory is bounded: mostPools pools.
package demand
