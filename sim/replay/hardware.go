package replay

import "fmt"

// Hardware is how replicas differ: multiples of the profile's figures, repeated over all replicas. None is all ones.
type Hardware struct {
	// Speeds are of prefill and decode, Caches of the KV cache in tokens.
	Speeds, Caches []float64
}

// nth repeats the list over the replicas.
func nth(list []float64, replica int) float64 {
	if len(list) == 0 {
		return 1
	}
	return list[replica%len(list)]
}

// profile is p as it is for one replica.
func (h *Hardware) profile(p *Profile, replica int) *Profile {
	own := *p
	own.Timing.Speed *= nth(h.Speeds, replica)
	own.CacheTokens = int(float64(p.CacheTokens) * nth(h.Caches, replica))
	return &own
}

// cacheTokens are the tokens of n replicas' caches.
func (h *Hardware) cacheTokens(p *Profile, n int) (sum int) {
	for i := range n {
		sum += h.profile(p, i).CacheTokens
	}
	return sum
}

// leastCache are the tokens of the smallest cache of n replicas, of which there is at least one.
func (h *Hardware) leastCache(p *Profile, n int) int {
	least := h.profile(p, 0).CacheTokens
	for i := range n {
		least = min(least, h.profile(p, i).CacheTokens)
	}
	return least
}

func (h *Hardware) check() (errs []error) {
	for name, list := range map[string][]float64{"speed": h.Speeds, "cache": h.Caches} {
		for _, f := range list {
			if !(f > 0) {
				errs = append(errs, fmt.Errorf("%s %v: must be above 0", name, f))
			}
		}
	}
	return errs
}
