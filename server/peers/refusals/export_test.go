package refusals

// Reasons lists the reasons.
func Reasons() []Reason { return reasons() }
