package facts

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
)

// version orders facts: by time in milliseconds, then by router.
type version struct {
	ms     uint64
	router string
}

// after reports whether v is later than o.
func (v version) after(o version) bool {
	if v.ms != o.ms {
		return v.ms > o.ms
	}
	return v.router > o.router
}

// age is the time since v by the clock of this router.
func (v version) age(now time.Time) time.Duration {
	return now.Sub(v.time())
}

func (v version) time() time.Time { return time.UnixMilli(int64(v.ms)) }

// proto and versionOf are the wire form of a version.
func (v version) proto() *peerv1.FactVersion {
	return &peerv1.FactVersion{Time: timestamppb.New(v.time()), RouterId: v.router}
}

func versionOf(in *peerv1.FactVersion) version {
	return version{uint64(in.GetTime().AsTime().UnixMilli()), in.GetRouterId()}
}

// maxAhead is how far ahead of this router's clock a version may be. One further ahead would make all later versions of the
// fleet follow a clock that is wrong.
const maxAhead = 24 * time.Hour

// clock gives versions to this router's own facts.
type clock struct {
	router string
	latest uint64
}

// next is later than every version seen.
func (c *clock) next(now time.Time) version {
	c.latest = max(c.latest+1, uint64(now.UnixMilli()))
	return version{c.latest, c.router}
}

func (c *clock) see(v version) { c.latest = max(c.latest, v.ms) }
