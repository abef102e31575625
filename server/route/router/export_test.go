package router

import (
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/route/router/attempt"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const (
	HeaderChoice  = attempt.HeaderChoice
	HeaderOverlap = attempt.HeaderOverlap
	HeaderReplica = attempt.HeaderReplica
	HeaderAdapter = direct.HeaderAdapter
	HeaderResume  = intake.HeaderResume
)

// NewID makes the id of a request.
func NewID(origin string) string { return intake.NewID(origin) }

// SetLegs sets how long the legs of split requests may take in addition to their predicted time, and how long engines keep blocks that
// nothing reads.
func (r *Router) SetLegs(patience, lease time.Duration) {
	r.attempts.Legs.Patience, r.attempts.Legs.Lease = patience, lease
}

// CopyPrefix copies the beginning of a prompt as for a request that waits.
func (r *Router) CopyPrefix(id, model, salt string, prompt []uint32, p *chooser.Prefix) {
	r.attempts.Copier.Prefixes(id, openai.PrefixLegs{Model: model, Salt: salt, IDs: prompt}).Copy(p)
}

// SetCopyPatience sets how long a copy may take in addition to its predicted time.
func (r *Router) SetCopyPatience(patience time.Duration) { r.attempts.Copier.Patience = patience }
