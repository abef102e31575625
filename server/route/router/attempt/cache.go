package attempt

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

// cache is what an attempt decodes from: the prompt's cache on the replica that computed it.
type cache struct {
	lead *chooser.Choice
	legs openai.Legs
	// params is what the engine passed on, raw; nil until then.
	params []byte
	usage  openai.Prefilled
	sent   time.Time
	vigil  *vigil
	over   atomic.Bool // lead was released, or will be
}

// pushes reports whether the cache is written by the engine that computes it.
func (c *cache) pushes() bool { return c.lead.Replica.Transport() == replica.NIXLPush }

// isMooncake reports whether engines find the cache by a bootstrap server.
func (c *cache) isMooncake() bool { return c.lead.Replica.Transport() == replica.Mooncake }

// lingers reports whether an engine loses blocks whose client leaves while it waits for the cache, or keeps them for many minutes.
func (c *cache) lingers() bool { return c.pushes() || c.isMooncake() }

// isKept reports whether the engine that computed the prompt keeps its blocks for another one.
func (c *cache) isKept() bool {
	return c.usage.PromptTokens >= 0 && (c.params != nil || c.isMooncake())
}

// fits reports whether the engine passes caches on in the way that its label says.
func (c *cache) fits() bool {
	return c.usage.Mode == "" || (c.usage.Mode == "push") == c.pushes()
}

// booked is how the booking of the rank that prefills ends.
func (c *cache) booked(end decision.End) chooser.Result {
	result := chooser.ResultOf(end)
	if c.params != nil {
		result.End, result.PromptTokens, result.OutputTokens, result.CachedTokens = decision.EndCompleted, c.usage.PromptTokens, 1, c.usage.CachedTokens
	}
	return result
}

// IsSplit reports whether another replica computes the prompt.
func (a *Attempt) IsSplit() bool { return a.Choice != nil && a.Choice.Prefill() != nil }

// legID is the request id of a leg: no leg of any other request has it. Engines that push find each other by it, so both legs have the same.
func legID(rq *intake.Request, a *Attempt, leg string) string {
	if a.cache.pushes() {
		leg = "s"
	}
	return rq.ID + "-" + leg + strconv.Itoa(a.Choice.Decision.Attempt)
}

// idAt is the request id that an attempt's engine gets.
func idAt(rq *intake.Request, a *Attempt) string {
	if a.cache != nil {
		return legID(rq, a, "d")
	}
	return rq.EngineID()
}
