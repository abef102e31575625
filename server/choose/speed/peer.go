package speed

import (
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

const (
	// ownFor is how long after an own sample a rank counts as learned by this router.
	ownFor = 30 * time.Second
	// The weight of a peer's Model in a fit, as a number of samples.
	peerWeightMin, peerWeightMax = 1, 8
	// maxPeerSamples bounds the samples that a peer's Model counts for.
	maxPeerSamples = 4 * kept
)

// Import takes another router's Model of the rank: it is the Model until own samples correct it. It does nothing
// while the rank is learned here.
func (r *Rank) Import(m Model, now time.Time) {
	m.Source, m.Token = decision.SpeedLearned, boundToken(m.Token)
	m.Bend = min(max(m.Bend, shortestBend), longestBend)
	m.Samples = min(m.Samples, maxPeerSamples)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.evidence.imported(&m, now) {
		r.refit(now)
	}
}

// Learned returns the Model and whether this router's own samples made it.
func (r *Rank) Learned() (Model, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := *r.Model()
	return m, r.evidence.own() && m.Source == decision.SpeedLearned
}

// weight is how many samples a peer's Model counts for.
func (m *Model) weight() float64 { return min(max(float64(m.Samples)/4, peerWeightMin), peerWeightMax) }
