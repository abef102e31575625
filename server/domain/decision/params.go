package decision

// Params are the numbers that an operator or a request may set for a policy; each policy reads
// its own. The zero value of a field is meaningful, so a complete Params comes from package selector.
type Params struct {
	// Temperature above zero draws among candidates by softmax over scaled costs.
	Temperature float64
	// CPUCredit and DiskCredit say how much of a token held in a lower tier counts as cached under the policies that add up scores.
	CPUCredit  float64
	DiskCredit float64

	// OverlapCredit, CreditDecay, PrefillScale and RequestWeight belong to overlap-load.
	OverlapCredit float64
	CreditDecay   float64
	PrefillScale  float64
	RequestWeight float64

	// PrefixWeight, QueueWeight and KVWeight belong to weighted-scorers.
	PrefixWeight float64
	QueueWeight  float64
	KVWeight     float64

	// MatchThreshold and ImbalanceThreshold belong to prefix-affinity; the latter 0 means none.
	MatchThreshold     float64
	ImbalanceThreshold float64

	// Interference is the weight of the decodes that a prefill delays, Congestion the weight of the requests that wait behind it
	// (predicted-ttft). An objective sets both.
	Interference float64
	Congestion   float64

	// SessionBonus is how many seconds of predicted time returning to a session's rank is worth.
	SessionBonus float64
	// SplitBonus is how many seconds of predicted time it is worth to split a request (predicted-ttft).
	SplitBonus float64
}
