package decision

// Adapting is the cost of a request's LoRA adapter on a rank. It is zero for a request without one. Times are in seconds.
type Adapting struct {
	// AdapterWait is the predicted time until an adapter that runs there has ended, so that this one may run; AdapterLoad the predicted time to
	// load it, in which the engine computes nothing; AdapterLoss the expected cost of bringing back the adapter that leaves for it.
	AdapterWait, AdapterLoad, AdapterLoss float32
	Adapter                               AdapterState
}

// AdapterTime is the part of it that delays the first token, in seconds.
func (a *Adapting) AdapterTime() float64 { return float64(a.AdapterWait) + float64(a.AdapterLoad) }

// AdapterState is where a rank has a request's LoRA adapter, as far as the router knows.
type AdapterState uint8

// The states.
const (
	// AdapterNone: the request has none.
	AdapterNone AdapterState = iota
	// AdapterRunning: in GPU memory, with requests in flight.
	AdapterRunning
	// AdapterResident: in GPU memory.
	AdapterResident
	// AdapterAbsent: it would have to be loaded.
	AdapterAbsent
	// AdapterFull: as many other adapters run as the engine can run at once.
	AdapterFull
)

// AdapterStates lists the states but for AdapterNone.
func AdapterStates() []AdapterState {
	return []AdapterState{AdapterRunning, AdapterResident, AdapterAbsent, AdapterFull}
}

// String gives the state in the form that metrics and JSON use; empty for AdapterNone.
func (s AdapterState) String() string {
	switch s {
	case AdapterRunning:
		return "running"
	case AdapterResident:
		return "resident"
	case AdapterAbsent:
		return "absent"
	case AdapterFull:
		return "full"
	case AdapterNone:
	}
	return ""
}
