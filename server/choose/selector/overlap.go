package selector

import (
	"math"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// overlapLoad is Dynamo's cost, in blocks: uncached prefill backlog with this request, less
// credit for held blocks, plus decode blocks.
type overlapLoad struct{}

// Select implements policy.
func (overlapLoad) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	least := math.Inf(1)
	each(d, func(c *decision.Candidate) float64 {
		least = min(least, float64(c.QueuedTokens))
		return 0
	})
	each(d, func(c *decision.Candidate) float64 {
		block := float64(max(1, c.BlockSize))
		own := math.Ceil(float64(d.PromptTokens) / block)
		raw := (float64(c.QueuedTokens) + float64(d.PromptTokens)) / block
		credit := d.Params.OverlapCredit
		if d.Params.CreditDecay > 0 && own > 0 {
			credit /= 1 + d.Params.CreditDecay*(float64(c.QueuedTokens)-least)/block/own
		}
		held := (credit*float64(c.GPU) + d.Params.CPUCredit*float64(c.CPU) + d.Params.DiskCredit*float64(c.Disk)) / block
		return d.Params.PrefillScale*max(0, raw-held) + c.DecodeBlocks + d.Params.RequestWeight*float64(c.Requests)
	})
	return cacheReason(d), throw
}

// weightedScorers sums scores from 0 to 1, as llm-d's default profile did before August 2026: share of the prompt
// held, emptiness of the queue among the candidates, free KV memory. The cost is the negative sum.
type weightedScorers struct{}

// Select implements policy.
func (weightedScorers) Select(d *decision.Decision, throw dice, _ int) (decision.Reason, dice) {
	low, high := math.Inf(1), math.Inf(-1)
	queue := func(c *decision.Candidate) float64 { return float64(max(int32(c.Waiting), c.EngineWaiting)) }
	each(d, func(c *decision.Candidate) float64 {
		low, high = min(low, queue(c)), max(high, queue(c))
		return 0
	})
	each(d, func(c *decision.Candidate) float64 {
		prefix, empty := 0.0, 1.0
		if d.PromptTokens > 0 {
			prefix = min(1, (float64(c.GPU)+d.Params.CPUCredit*float64(c.CPU)+d.Params.DiskCredit*float64(c.Disk))/float64(d.PromptTokens))
		}
		if high > low {
			empty = (high - queue(c)) / (high - low)
		}
		return -(d.Params.PrefixWeight*prefix + d.Params.QueueWeight*empty + d.Params.KVWeight*(1-usage(c)))
	})
	return cacheReason(d), throw
}

// usage is the share of the KV memory in use: as the engine reports it, else as booked.
func usage(c *decision.Candidate) float64 {
	switch {
	case c.KVUsage >= 0:
		return min(1, float64(c.KVUsage))
	case c.Blocks > 0:
		return min(1, c.DecodeBlocks/float64(c.Blocks))
	}
	return 0
}
