package enginesim

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

const (
	// mooncake is the connector with which engines find a cache by the name of its transfer and a bootstrap server.
	mooncake = "mooncake"
	// producer and consumer are the roles of engines that only compute prompts for others, and that only read them.
	producer, consumer = "kv_producer", "kv_consumer"
	// mooncakeLeases is how many leases Mooncake keeps a prompt for another engine.
	mooncakeLeases = 16
	// unknownEngine is how long vLLM takes to find that a bootstrap server does not know an engine.
	unknownEngine = time.Second
)

// isMooncake reports whether caches are found by a bootstrap server.
func (g exchange) isMooncake() bool { return g.l.cfg.Transfer.Connector == mooncake }

// names reports whether vLLM would read the prompt's cache by Mooncake: without one of these members it logs a warning and computes the prompt.
func (p *remotePrompt) names() bool {
	return p.EngineID != nil && p.Bootstrap != nil && p.TransferID != nil
}

// playsForeignRole reports whether the request asks for another part than the engine's: vLLM asserts that it does not.
func (g exchange) playsForeignRole() bool {
	kv, role := g.s.KVTransfer, g.l.cfg.Transfer.KVRole
	return kv != nil && (role == producer && kv.DoRemotePrefill || role == consumer && kv.DoRemoteDecode && !kv.DoRemotePrefill)
}

// bootstrapEntry is a rank of a replica in the answer of its bootstrap server.
type bootstrapEntry struct {
	EngineID string                       `json:"engine_id"`
	Workers  map[string]map[string]string `json:"worker_addr"`
}

// answerBootstrap answers GET /query: the process that computes prompts, by rank.
func answerBootstrap(l *life, c *call) {
	host, port := l.where()
	worker := map[string]map[string]string{"0": {"0": "tcp://" + host + ":" + strconv.Itoa(port)}}
	all := map[string]bootstrapEntry{}
	for rank := range l.cores {
		all[strconv.Itoa(rank)] = bootstrapEntry{l.engineID, worker}
	}
	c.reply(http.StatusOK, all)
}

// peer is the parameters with the address of the other engine, which has its bootstrap server at the same one.
func (g exchange) peer(kv *kvTransfer) *kvTransfer {
	if !g.isMooncake() {
		return kv
	}
	at := *kv
	at.Host, at.Port = new(string), new(int)
	if base, err := url.Parse(*kv.Bootstrap); err == nil {
		*at.Host = base.Hostname()
		*at.Port, _ = strconv.Atoi(base.Port())
	}
	return &at
}

// meetByBootstrap finds the prompt at the engine that computes it. An engine whose id the bootstrap server does not know is an error; once it was known, it is
// not asked for again, and a prompt that does not come, or an engine that is gone, is waited for as long as the client does: then the error is errLeft.
func (g exchange) meetByBootstrap(ctx context.Context, kv *kvTransfer) (*peerPrompt, error) {
	if _, met := g.l.met.Load(*kv.EngineID); !met {
		if !g.isKnown(ctx, kv) {
			sleep.For(ctx, time.Duration(float64(unknownEngine)/g.l.cfg.Core.Timing.Speed))
			return nil, errLoad
		}
		g.l.met.Store(*kv.EngineID, true)
	}
	at := g.peer(kv)
	for {
		found, err := g.askPeer(ctx, at, "find", *kv.TransferID)
		switch {
		case err == nil && found.Request != "":
			return found, nil
		case ctx.Err() != nil:
			return nil, errLeft
		}
		sleep.For(ctx, pushPoll)
	}
}

// isKnown asks the bootstrap server for the engine.
func (g exchange) isKnown(ctx context.Context, kv *kvTransfer) bool {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, *kv.Bootstrap+"/query", nil)
	if err != nil {
		return false
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var all map[string]bootstrapEntry
	if resp.StatusCode != http.StatusOK || json.UnmarshalRead(resp.Body, &all) != nil {
		return false
	}
	for _, entry := range all {
		if entry.EngineID == *kv.EngineID {
			return true
		}
	}
	return false
}
