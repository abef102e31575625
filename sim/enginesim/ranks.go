package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/feed"
)

// ranks are the data-parallel engines of a life.
type ranks struct {
	cores   []*core.Core
	pubs    []*zmtp.Publisher // empty when there are no events
	layout  feed.Layout
	trouble *faultBox
	pins    bool          // requests may name their rank
	batches atomic.Uint64 // event batches so far, for the faults that count them
	turn    atomic.Uint64 // for the balancer
}

// rank reads the pin of the request, or balances.
func (r *ranks) rank(req *http.Request) (int, *apiError) {
	v := req.Header.Get("X-Data-Parallel-Rank")
	if v == "" || !r.pins {
		return r.pick(), nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return r.pick(), nil // vLLM ignores any other value
	}
	if n < 0 || n >= len(r.cores) {
		return 0, reject(fmt.Sprintf("data_parallel_rank %d is out of range [0, %d).", n, len(r.cores)), "")
	}
	return n, nil
}

// pick chooses the rank of a request without a pin: the least loaded, in turn.
func (r *ranks) pick() int {
	if len(r.cores) == 1 {
		return 0
	}
	best, least := 0, int(^uint(0)>>1)
	from := int(r.turn.Add(1))
	for i := range r.cores {
		at := (from + i) % len(r.cores)
		s := r.cores[at].Stats()
		if n := s.Running + s.Waiting; n < least {
			best, least = at, n
		}
	}
	return best
}

// publish sends a step's events, unless a fault says otherwise.
func (r *ranks) publish(rank int, events []core.Event) {
	f := r.trouble.get()
	layout := r.layout
	if f.LieEvents {
		layout |= feed.Lie
	}
	n := r.batches.Add(1)
	pub := r.pubs[rank]
	switch {
	case f.StopEvents:
	case f.HoleEvents > 0 && n%uint64(f.HoleEvents) == 0:
		pub.Skip(1)
	case f.DropEvents > 0 && n%uint64(f.DropEvents) == 0:
		pub.Lose(feed.Encode(nil, layout, time.Now(), rank, events))
	default:
		pub.Publish(feed.Encode(nil, layout, time.Now(), rank, events))
	}
}
