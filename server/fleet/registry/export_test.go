package registry

import "github.com/kvpilot/kvpilot/server/domain/replica"

// Unobserved is an Observer and a Reporter that do nothing.
type Unobserved = unobserved

// Ready counts the pool's replicas that take requests.
func (p *Pool) Ready() int {
	n := 0
	for _, r := range p.Replicas {
		if r.State == replica.StateReady {
			n++
		}
	}
	return n
}

// CheckEndpoint and IsNear are how a Service's addresses are checked.
var (
	CheckEndpoint = checkEndpoint
	IsNear        = isNear
)
