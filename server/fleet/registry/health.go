package registry

import "github.com/kvpilot/kvpilot/server/domain/replica"

// health is the state of a replica by its probes, whether it drains or not. The zero value is a replica that starts.
type health struct {
	state     replica.State // Starting, Ready or Unhealthy
	ups       int           // consecutive probes that succeeded
	downs     int           // consecutive probes that failed
	closed    bool          // its port was closed since it last answered
	mute      bool          // unhealthy because probes get no answer
	lastError string
}

// restart begins again for a replica at another address.
func (h *health) restart() { h.state, h.ups, h.downs = replica.StateStarting, 0, 0 }

// succeeded notes a probe that was answered. reopened reports that the port was closed before.
func (h *health) succeeded() (changed, reopened bool) {
	changed, reopened = h.lastError != "", h.closed
	h.lastError, h.closed, h.downs = "", false, 0
	h.ups++
	return changed, reopened
}

// rise makes a replica ready that starts, or that has answered up probes.
func (h *health) rise(up int) bool {
	if h.state == replica.StateReady || h.state != replica.StateStarting && h.ups < up {
		return false
	}
	h.state = replica.StateReady
	return true
}

// failed notes a probe that failed. A ready replica is unhealthy when its port is closed, or after down failures. One that never
// was healthy is still starting.
func (h *health) failed(res result, down int) (changed, unhealthy bool) {
	h.ups = 0
	h.downs++
	h.closed = h.closed || res.refused
	if text := res.err.Error(); text != h.lastError {
		h.lastError, changed = text, true
	}
	if h.state == replica.StateUnhealthy && h.mute && !res.mute {
		h.mute, changed = false, true // it is more than late
	}
	if h.state != replica.StateReady || !res.refused && h.downs < down {
		return changed, false
	}
	h.state, h.mute = replica.StateUnhealthy, res.mute
	return true, true
}
