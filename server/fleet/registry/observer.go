package registry

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Observer follows the fleet. The core calls it in the order of the changes.
type Observer interface {
	// RankAdded is called for each new rank before a snapshot shows it.
	RankAdded(slot replica.Slot, r *replica.Replica, rank int)
	// RankRemoved is called for each rank that no snapshot shows any more. Its slot may be used again
	// after the call returned.
	RankRemoved(slot replica.Slot)
	// ReplicaRestarted is called when the engine behind a replica is a new process, which began at the given
	// moment or a little earlier. The replica keeps its slots.
	ReplicaRestarted(r *replica.Replica, began time.Time)
	// FleetChanged is called with each new snapshot after it was published.
	FleetChanged(*Snapshot)
}

// Reporter passes the changes by this router's callers to other routers. Changes by the Apply methods are not reported. The calls
// come in the order of the changes and must not block.
type Reporter interface {
	// Drained is called when a caller has drained a replica, or undrained it: drain is nil then.
	Drained(id replica.ID, drain *Drain)
	// Registered is called when a caller has registered a replica or renewed its registration; left is the time left of the lease.
	Registered(spec Spec, left time.Duration)
	// Deregistered is called when a caller has withdrawn a registration.
	Deregistered(id replica.ID)
}

// unobserved is the Observer and the Reporter of a registry without one.
type unobserved struct{}

func (unobserved) RankAdded(replica.Slot, *replica.Replica, int) {}
func (unobserved) RankRemoved(replica.Slot)                      {}
func (unobserved) ReplicaRestarted(*replica.Replica, time.Time)  {}
func (unobserved) FleetChanged(*Snapshot)                        {}
func (unobserved) Drained(replica.ID, *Drain)                    {}
func (unobserved) Registered(Spec, time.Duration)                {}
func (unobserved) Deregistered(replica.ID)                       {}
