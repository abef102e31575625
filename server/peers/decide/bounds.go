package decide

import (
	"math"
	"time"
)

// Peers' statements are bounded to possible values: their numbers are this router's load, their words its labels.
const (
	// maxTokens bounds the tokens of a prompt or an answer: no context is that long.
	maxTokens = 16 << 20
	// maxMemory bounds the tokens of a rank's memory.
	maxMemory = 1 << 40
	// maxSamples is the largest n that engines accept.
	maxSamples = 16384
	// maxSpan bounds the ages and waits of requests.
	maxSpan = 24 * time.Hour
	// maxRetryAfter bounds the Retry-After of a refusal.
	maxRetryAfter = time.Hour
	// maxMessage bounds the text of a refusal, in bytes.
	maxMessage = 1024
	// maxText bounds each name in a question or a booking, in bytes.
	maxText = 4096
	// maxOfPeer bounds the questions and the bookings of one peer.
	maxOfPeer = 1 << 18
	// heldMost bounds a wait in a peer's hold queue if the own one has no bound: programs may wait for memory that long.
	heldMost = time.Hour
	// maxSeconds bounds a predicted time.
	maxSeconds = 24 * 3600
)

func tokensOf(n uint32) int { return int(min(n, maxTokens)) }

// amount is a number from 0 to maxSeconds; 0 for any other value.
func amount(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, maxSeconds)
}

// finite is a number; 0 for any other value.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// isShort reports whether no text is longer than any that a router sends. Others are not kept: a question without an answer is
// decided by its frontend.
func isShort(texts ...string) bool {
	for _, text := range texts {
		if len(text) > maxText {
			return false
		}
	}
	return true
}

// clip shortens text of a peer.
func clip(text string) string { return text[:min(len(text), maxMessage)] }

// heldFor is how long a peer may say that a request is held: as long as the own queue would hold one.
func (f *Frontend) heldFor() time.Duration {
	if most := f.params.Chooser.Config().Queue.MaxWait; most > 0 {
		return most + f.cfg.Patience
	}
	return heldMost
}
