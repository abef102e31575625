package follow

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/choose/transfer"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// Loaded is a request with a prompt of which its rank holds a part below its GPU. It is an Observer: the rank's tiers learn how much of that part the
// engine has found, and how long the load took.
type Loaded struct {
	ask.Reporting
	Decision *decision.Decision
	Found    *Found
	Tiers    *transfer.Tiers
	Fetches  *transfer.Fetches

	took atomic.Uint64 // seconds to the first token, the bits of a float64; 0: not seen
}

const (
	// foundShare is the share of a load that the engine must have found for its time to count: it has computed the rest.
	foundShare = 0.9
	// oneTier is the share of a load that one tier must have for the time to be that tier's.
	oneTier = 0.9
	// mostRest is how many times the predicted load the rest of the predicted time may be for the difference to show the load's time, and
	// farLate from how many times the prediction on it shows in any case.
	mostRest = 4
	farLate  = 3
	// leastLoad bounds a measured load, as a share of the predicted one: the rest's prediction may be too long.
	leastLoad = 0.25
)

// FirstToken implements Observer.
func (l *Loaded) FirstToken(now time.Time, _ int) {
	if l.SeesFirst() && !l.External {
		l.took.Store(math.Float64bits(now.Sub(l.Decision.At).Seconds()))
	}
}

// Progress implements Observer.
func (*Loaded) Progress(int) {}

// Ended implements Observer.
func (l *Loaded) Ended(end *ask.End) {
	d := l.Decision
	if !end.Completed() || l.External || end.ServedBy != "" || d.Keyless || d.Estimated && l.Found.Later() == nil {
		return
	}
	cand := d.Pick()
	held := int(cand.CPU + cand.Disk)
	got := held
	switch {
	case !end.Counted && end.CachedTokens >= 0:
		got = min(held, max(0, end.CachedTokens-int(cand.GPU)))
		l.found(cand, got)
	case l.Fetches.Seen() > 0: // the engine's counters show it, for all of the rank's requests together
		got = int(l.Fetches.Share() * float64(cand.Loadable))
		l.found(cand, got)
	}
	found := float64(got) >= foundShare*float64(held)
	l.Fetches.Expect(int(cand.Loadable))
	if took := math.Float64frombits(l.took.Load()); took > 0 && found {
		l.learn(cand, took)
	}
}

// found notes that the engine found the first got tokens of the part below its GPU. The tokens that the index knew in host memory come first, then its
// tokens in the store, then the tokens that only a directory has named.
func (l *Loaded) found(cand *decision.Candidate, got int) {
	named := transfer.Below(&cand.Overlap, cand.Named)
	host, store := int(cand.CPU-named.Host), int(cand.Disk-named.Store)
	inHost := min(got, host)
	inStore := min(got-inHost, store)
	l.Tiers.Host.Found(inHost, host)
	l.Tiers.Store.Found(inStore, store)
	l.Tiers.Named.Found(got-inHost-inStore, int(cand.Named))
}

// learn has the tier that nearly all was loaded from learn the time of the load. Where the rank had other prompts or loads before the request, or the rest of
// the prompt takes much longer than the load, the time to the first token does not show it.
func (l *Loaded) learn(cand *decision.Candidate, took float64) {
	rest := cand.TTFT - cand.Load
	if cand.Load == 0 || cand.Backlog+cand.Planned+float64(cand.LoadWait) > cand.Load/4 || rest > mostRest*cand.Load && took < farLate*cand.TTFT {
		return
	}
	held := float64(cand.CPU + cand.Disk)
	seconds := max(took-rest-float64(cand.LoadWait), leastLoad*cand.Load)
	switch {
	case float64(cand.CPU) >= oneTier*held:
		l.Tiers.Host.Learn(int(cand.Loadable), seconds)
	case float64(cand.Disk) >= oneTier*held:
		l.Tiers.Store.Learn(int(cand.Loadable), seconds)
	}
}
