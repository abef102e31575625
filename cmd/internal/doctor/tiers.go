package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

const (
	// describing has the events of vLLM's OffloadingConnector carry tokens.
	describing = `set "self_describing_kv_events":true in kv_connector_extra_config of --kv-transfer-config`
	// lmcacheEvents has LMCache publish events.
	lmcacheEvents = "switch LMCache's KV events on (enable_kv_events: true in its configuration; its multiprocess mode publishes from 0.5.6 on)"
)

// belowGPU counts a rank's events about blocks below its GPU. Of these, described carry tokens.
type belowGPU struct{ events, described int }

// below is a rank's KV cache below the GPU, as far as it shows.
type below struct {
	enginestats.Offload
	belowGPU
	kvindex.RankStats
	store string // the label kv_store
}

// lower is the number of its blocks there that events have named.
func (b *below) lower() int { return b.Blocks[kvblock.TierCPU] + b.Blocks[kvblock.TierDisk] }

// shows reports whether anything says that there is such a cache.
func (b *below) shows() bool { return b.By != "" || b.events > 0 || b.lower() > 0 || b.store != "" }

// checkTiers looks for KV cache below the GPU at each rank, and for events that name the blocks there.
func checkTiers(ctx context.Context, in scope) []Finding {
	ranks := map[replica.Slot]kvindex.RankStats{}
	for _, s := range in.observer.Index.Stats().Ranks {
		ranks[s.Slot] = s
	}
	shown := false
	list := in.each(func(r *replica.Replica) (found []Finding) {
		r = in.now(r)
		e, err := in.measured(ctx, r)
		if err != nil {
			return []Finding{skip(string(r.ID), "the metrics cannot be read")}
		}
		for rank, slot := range r.Slots {
			if why, lost := in.lost[rankName(r, rank)]; lost {
				found = append(found, blockedBy(rankName(r, rank), why))
				continue
			}
			b := below{Offload: e.Offload, RankStats: ranks[slot], store: r.Labels[replica.LabelStore]}
			in.mu.Lock()
			b.belowGPU = in.lower[slot]
			shown = shown || b.shows()
			in.mu.Unlock()
			found = append(found, b.judge(rankName(r, rank))...)
		}
		return found
	})
	if !shown && len(list) > 0 && len(in.lost) == 0 {
		return []Finding{skip("", "no replica reports KV cache below its GPU, and no KV event names a block there")}
	}
	return list
}

// judge says whether the router knows the cache.
func (b *below) judge(subject string) []Finding {
	switch {
	case !b.shows():
		return []Finding{ok(subject, "nothing below the GPU")}
	case b.State == kvblock.FeedNone:
		return fault(Warn, subject, "KV events, which name the blocks below the GPU", b.text()+"; the rank publishes no events: those blocks count for nothing", "start vLLM with "+eventsOn)
	case b.lower() == 0 && b.events == 0:
		return b.unnamed(subject)
	case b.Chunk > 1 && b.described == 0:
		return fault(Warn, subject, "events that name every block below the GPU", fmt.Sprintf("%s, in chunks of %d blocks, of which events name the last one only", b.text(), b.Chunk), describing)
	case b.described == 0 && b.Unkeyed > 0:
		return fault(Warn, subject, "blocks below the GPU that events describe, or that the GPU has announced before", fmt.Sprintf("%s; %d blocks are known by hash only and match no prompt", b.text(), b.Unkeyed),
			describing+": the router has started after the GPU announced them")
	case b.Remote > 0 && b.store == "":
		return fault(Warn, subject, "the label "+replica.LabelStore+" of replicas that share a store", b.text()+", some of them in memory that is not the rank's own",
			"give the replicas that share the store the same label "+replica.LabelStore+": without it each one counts on the blocks alone that it has stored itself")
	}
	return []Finding{ok(subject, "%s", b.text())}
}

// unnamed is a cache of which no event has named a block.
func (b *below) unnamed(subject string) []Finding {
	switch {
	case b.By == "":
		return fault(Warn, subject, "KV events that name blocks in the store "+b.store+", as its label says", "no event names a block below the GPU, and the metrics say nothing of a cache there",
			"start the engine with a connector for the store (--kv-transfer-config), or remove the label "+replica.LabelStore)
	case b.Counted && !b.Stored:
		return []Finding{ok(subject, "%s; nothing was stored there yet", b.text())}
	case b.By == "LMCache":
		return fault(Warn, subject, "KV events that name the blocks in LMCache", b.text()+", and no event names a block there", lmcacheEvents)
	case b.Counted:
		return fault(Warn, subject, "KV events that name the blocks below the GPU", b.text()+": the engine has stored blocks there, and no event names one", describing+"; does the check events find this engine's own socket?")
	}
	return []Finding{ok(subject, "%s; no event has named a block there yet", b.text())}
}

// text describes the cache.
func (b *below) text() string {
	var parts []string
	if b.By != "" {
		parts = append(parts, b.By)
	}
	if b.Tokens > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens of host memory", b.Tokens))
	}
	if b.store != "" {
		parts = append(parts, "the store "+b.store)
	}
	if n := b.Blocks[kvblock.TierCPU]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d blocks in host memory known", n))
	}
	if n := b.Blocks[kvblock.TierDisk]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d blocks in a store known", n))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%d events about blocks below the GPU", b.events)
	}
	return strings.Join(parts, ", ")
}
