package decision

// PrefillTime is the time to prefill n tokens after context tokens that are already there:
// linear in n but for attention, which makes a token at context bend cost twice one at zero.
// A bend of zero means that attention is not modelled.
func PrefillTime(perToken, bend, context, n float64) float64 {
	t := perToken * n
	if bend > 0 {
		t *= 1 + (context+n/2)/bend
	}
	return t
}
