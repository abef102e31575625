package decision

// Veto says why a candidate could not be chosen; VetoNone means it could.
type Veto uint8

// The vetoes, in the order in which they are tried.
const (
	VetoNone Veto = iota
	// VetoState: starting or unhealthy.
	VetoState
	// VetoModel: does not serve the model or the adapter.
	VetoModel
	// VetoExcluded: already tried by this request, or its breaker is open.
	VetoExcluded
	// VetoDenied: the request forbids it.
	VetoDenied
	// VetoNotAllowed: the request names others.
	VetoNotAllowed
	// VetoPinned: the request is pinned elsewhere.
	VetoPinned
	// VetoRank: outside the request's rank bounds.
	VetoRank
	// VetoCap: at its limit of requests.
	VetoCap
	// VetoContext: the prompt exceeds the replica's context length.
	VetoContext
	// VetoStalled: has requests and makes no progress.
	VetoStalled
	// VetoDraining: drained by an operator, or about to be removed by its source.
	VetoDraining
	// VetoMemory: the programs that have their place there leave no memory for another one.
	VetoMemory
	// VetoRole: computes prompts for others only, as long as another replica can serve.
	VetoRole
	vetoes
)

// vetoNames are the forms that metrics and JSON use.
func vetoNames() [vetoes]string {
	return [vetoes]string{
		"", "state", "model", "excluded", "denied", "not_allowed", "pinned", "rank", "cap", "context", "stalled", "draining", "memory", "role",
	}
}

// Vetoes lists all vetoes but VetoNone.
func Vetoes() []Veto {
	all := make([]Veto, 0, vetoes-1)
	for v := VetoState; v < vetoes; v++ {
		all = append(all, v)
	}
	return all
}

// String gives the veto in the form that metrics and JSON use; empty for VetoNone.
func (v Veto) String() string {
	if v < vetoes {
		return vetoNames()[v]
	}
	return "unknown"
}
