package main

import "github.com/kvpilot/kvpilot/internal/proc"

// router is a kvpilot serve.
type router struct {
	*proc.Process
	http, grpc, admin, gossip, rpc string
}

// memory is the resident memory now and at most since the peak was reset, in MiB; 0 when the process is gone.
func (r *router) memory() (resident, peak int64) {
	resident, peak, _ = proc.Memory(r.PID)
	return resident >> 20, peak >> 20
}
