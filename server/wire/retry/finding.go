package retry

// Cause is the party whose fault an attempt's end is.
type Cause uint8

// The causes.
const (
	// CauseNone: there is no fault.
	CauseNone Cause = iota
	// CauseRequest: the request fails wherever it is sent, or cannot be sent.
	CauseRequest
	// CauseCaller: the caller left, or its deadline passed.
	CauseCaller
	// CauseTenant: the requests of the tenant fail on several replicas.
	CauseTenant
	// CauseRouter: this process lacks files, ports or memory for connections.
	CauseRouter
	// CauseNetwork: the replica, or the proxy before it, cannot be reached.
	CauseNetwork
	// CauseReplica: the replica failed a request.
	CauseReplica
	// CauseRank: one rank of the replica failed a request.
	CauseRank
)

var causeNames = [...]string{
	CauseNone: "none", CauseRequest: "request", CauseCaller: "caller", CauseTenant: "tenant", CauseRouter: "router",
	CauseNetwork: "network", CauseReplica: "replica", CauseRank: "rank",
}

// Causes lists all causes of faults, so that metrics exist from the start.
func Causes() []Cause {
	return []Cause{CauseRequest, CauseCaller, CauseTenant, CauseRouter, CauseNetwork, CauseReplica, CauseRank}
}

// String gives the cause in the form that metrics and logs use.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "unknown"
}

// Against reports whether a fault of this cause counts against the replica.
func (c Cause) Against() bool { return c == CauseNetwork || c == CauseReplica || c == CauseRank }

// Origin names the request of an attempt and its tenant by keyed hashes. Zero is unknown.
type Origin struct{ Tenant, Request uint64 }

// Finding is a verdict with its cause: the evidence for or against a replica.
type Finding struct {
	Verdict Verdict
	Cause   Cause
	// Sure is set when the request cannot be the cause: another replica served it, or this one did not have it yet.
	Sure   bool
	Origin Origin
}

// Find returns the finding of an attempt that is compared with no other.
func Find(v Verdict, from Origin) Finding {
	return Finding{Verdict: v, Cause: v.Cause(), Sure: !v.Follows(), Origin: from}
}

// Against reports whether the finding counts against the replica.
func (f Finding) Against() bool { return f.Verdict.Fault() && f.Cause.Against() }

// Exonerates reports whether another replica failed in the same way, so that the replica is not at fault.
func (f Finding) Exonerates() bool { return f.Verdict.Fault() && f.Cause == CauseRequest }

// Silent reports whether the replica made no progress for too long. Unlike another failure, that is outweighed by the replica's
// successes since then only, and two silent replicas are no evidence against the request.
func (v Verdict) Silent() bool { return v == Timeout || v == Stalled }

// Alike reports whether two replicas failed a request in the same way: both answered with an error, or both ended the connection.
func Alike(a, b Verdict) bool {
	return a.Follows() && b.Follows() && !a.Silent() && !b.Silent() && a.answered() == b.answered()
}

// answered reports whether the replica answered with an error.
func (v Verdict) answered() bool { return v == EngineError || v == Unavailable || v == Gateway }
