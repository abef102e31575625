package router

import "time"

const (
	HeaderChoice  = headerChoice
	HeaderOverlap = headerOverlap
	HeaderReplica = headerReplica
	HeaderAdapter = headerAdapter
	HeaderResume  = headerResume
)

// NewID makes the id of a request.
func NewID(origin string) string { return newID(origin) }

// SetLegs sets how long the legs of split requests may take in addition to their predicted time, and how long engines keep blocks that
// nothing reads.
func (r *Router) SetLegs(patience, lease time.Duration) {
	r.answers.attempts.legs.legTiming = legTiming{patience, lease}
}
