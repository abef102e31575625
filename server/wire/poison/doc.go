// Package poison remembers requests that fail on every replica that gets them, and the tenants that send such requests. A fault of a
// request costs the fleet at most a few comparisons of two replicas, and counts against no replica.
package poison
