package evaluate

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/rank"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// conducted sets the suspicions of a candidate's rank.
func conducted(cand *decision.Candidate, rk *rank.Rank, outputs float64, now time.Time) {
	if about := rk.Avoided.Load(); about != nil {
		cand.Suspicions, cand.Slowness, cand.Trust = uint8(about.Suspicions), float32(about.Slowness), float32(about.Trust)
		cand.Drag = rk.Conduct.Drag(outputs, now)
	}
}

// discount takes from a rank's overlap the part that its answers have shown to be a mere claim.
func discount(cand *decision.Candidate, rk *rank.Rank) {
	about := rk.Avoided.Load()
	if about == nil || about.Trust >= 1 {
		return
	}
	cand.Claimed = cand.GPU
	size := max(cand.BlockSize, 1)
	for _, held := range [...]*uint32{&cand.GPU, &cand.CPU, &cand.Disk} {
		*held = uint32(float64(*held)*about.Trust) / size * size
	}
}
