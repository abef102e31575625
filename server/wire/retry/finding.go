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

//nolint:gochecknoglobals // a constant table
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

// Alike reports whether two replicas failed a request in the same way: both answered with an error, ended the connection, or took too long.
func Alike(a, b Verdict) bool { return a.Follows() && b.Follows() && a.kind() == b.kind() }

// kind groups verdicts that one cause can have.
func (v Verdict) kind() string {
	switch v {
	case EngineError, Unavailable, Gateway:
		return "answer"
	case Timeout, Stalled:
		return "time"
	case Reset, Broken, Malformed:
		return "connection"
	default:
		return v.String()
	}
}
