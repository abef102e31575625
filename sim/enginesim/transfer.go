package enginesim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// Transfer is how a replica passes KV cache on, as vLLM's NixlConnector, NixlPushConnector and MooncakeConnector do.
type Transfer struct {
	// Connector is nixl, nixl-push or mooncake, or empty for none.
	Connector string
	// KVRole is kv_producer, kv_consumer, or empty for kv_both. Mooncake's engines play no other.
	KVRole string
	// Start and PerToken are the time of a transfer to this replica.
	Start, PerToken time.Duration
	// Lease is how long blocks that no engine has read are kept (kv_lease_duration).
	Lease time.Duration
}

// defaultTransfer has the times that llm-d published for single requests.
func defaultTransfer() Transfer {
	return Transfer{Start: 25 * time.Millisecond, PerToken: 4400 * time.Nanosecond, Lease: 30 * time.Second}
}

// validate reports bad fields.
func (t *Transfer) validate() error {
	switch t.Connector {
	case "", "nixl", push, mooncake:
	default:
		return fmt.Errorf("the connector must be nixl, nixl-push, mooncake or empty, not %q", t.Connector)
	}
	switch t.KVRole {
	case "", producer, consumer:
	default:
		return fmt.Errorf("the KV role must be %s, %s or empty, not %q", producer, consumer, t.KVRole)
	}
	if t.Start < 0 || t.PerToken < 0 || t.Lease < 0 {
		return errors.New("the times of transfers must not be negative")
	}
	return nil
}

// push is the connector with which the engine that computes a prompt writes the cache.
const push = "nixl-push"

// handshakeTimeout is how long vLLM takes to find that there is no engine at an address.
const handshakeTimeout = 5 * time.Second

// kvTransfer is kv_transfer_params.
type kvTransfer struct {
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	remotePrompt
}

// remotePrompt says where a prompt is computed, or that it is computed for another engine.
type remotePrompt struct {
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	BlockIDs        [][]int `json:"remote_block_ids"`
	EngineID        *string `json:"remote_engine_id"`
	RequestID       *string `json:"remote_request_id"`
	Host            *string `json:"remote_host"`
	Port            *int    `json:"remote_port"`
	TPSize          *int    `json:"tp_size"`
	NumTokens       *int    `json:"remote_num_tokens"`
	CachedTokens    *int    `json:"remote_prefill_cached_tokens"`
	TransferID      *string `json:"transfer_id"`
	Bootstrap       *string `json:"remote_bootstrap_addr"`
}

// complete reports whether vLLM would read the prompt's cache: without one of these members it logs a warning and computes the prompt.
func (p *remotePrompt) complete() bool {
	return p.EngineID != nil && p.RequestID != nil && p.Host != nil && p.Port != nil
}

// exchange is the part of a generation that concerns other engines.
type exchange struct{ *generation }

// prefills reports whether the request's prompt is computed for another engine.
func (g exchange) prefills() bool {
	kv := g.s.KVTransfer
	if g.isMooncake() && (kv == nil || kv.TransferID == nil || *kv.TransferID == "") {
		return false // vLLM logs a warning, and keeps nothing
	}
	return g.l.cfg.Transfer.Connector != "" && kv != nil && kv.DoRemoteDecode
}

// reads reports whether the request's prompt comes from another engine.
func (g exchange) reads() bool {
	kv := g.s.KVTransfer
	if kv == nil || !kv.DoRemotePrefill {
		return false
	}
	if g.isMooncake() {
		return kv.names()
	}
	return g.l.cfg.Transfer.Connector != "" && kv.complete()
}

// pushed reports whether caches are written by the engine that computes them.
func (g exchange) pushed() bool { return g.l.cfg.Transfer.Connector == push }

// pinName is the name of the request at the engine: unlike the client's id it is used once.
func (g exchange) pinName() string {
	if g.isMooncake() {
		return *g.s.KVTransfer.TransferID
	}
	return g.id + "-" + g.l.newID()[:suffix-1]
}

// suffix is the length of what a request's name at the engine has behind its id.
const suffix = len("-01234567")

// pin keeps the blocks of a prompt for another engine.
func (g exchange) pinOf(prompt []uint32) core.Pin {
	lease := g.l.cfg.Transfer.Lease
	if g.isMooncake() {
		lease *= mooncakeLeases
	}
	return core.Pin{Name: g.pin, Lease: time.Duration(float64(lease) / g.l.cfg.Core.Timing.Speed), Print: printOf(prompt)}
}

// printOf distinguishes a prompt from others.
func printOf(prompt []uint32) uint64 {
	h := fnv.New64a()
	for _, id := range prompt {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], id)
		h.Write(b[:])
	}
	return h.Sum64()
}

// base is the name by which a choice is found where caches are pushed: that of another one than the first is nowhere else.
func (g exchange) base(ch *choice) string {
	if g.s.N != nil && *g.s.N > 1 {
		return strconv.Itoa(ch.index) + "_" + g.id
	}
	return g.id
}

// written are an answer's tokens. vLLM does not check that a cache is that of the prompt: from another one's, it writes something else.
func (c *choice) written(write func(i int) uint32) func(i int) uint32 {
	return func(i int) uint32 {
		id := write(i)
		if c.foreign.Load() {
			id = vocab.Encode(nil, " elsewhere")[0]
		}
		return id
	}
}

// errLoad is why a prompt's cache could not be read.
var errLoad = errors.New("KV load failed")

// errLeft is why a prompt's cache is not read any more.
var errLeft = errors.New("the client left")

// fetch reads the cache of a choice's prompt from the engine that computed it, and then queues the choice. It ends with the request.
func (g exchange) fetch(ctx context.Context, ch *choice) {
	kv := g.s.KVTransfer
	defer func() {
		select {
		case g.ready <- struct{}{}:
		default: // there is something to read already
		}
	}()
	t := &g.l.cfg.Transfer
	from, err := g.meet(ctx, kv, ch)
	switch {
	case errors.Is(err, errLeft):
		if g.pushed() { // for good; with Mooncake for some minutes
			core.Strand(ch.core, ch.seq)
		}
		return
	case err != nil:
		g.lost.Store(true)
		return
	}
	ch.foreign.Store(from.Print != printOf(ch.prompt.ids))
	lacks := len(ch.prompt.ids) - ch.core.Holds(ch.seq)
	took := time.Duration(float64(t.Start+time.Duration(lacks)*t.PerToken) / g.l.cfg.Core.Timing.Speed)
	if !sleep.For(ctx, took) {
		return
	}
	if _, err := g.askPeer(ctx, g.peer(kv), "done", from.Request); err != nil {
		g.lost.Store(true)
		return
	}
	if !g.l.trouble.get().Recompute {
		ch.core.Receive(ch.seq)
	}
	ch.core.Submit(ch.seq)
	if ctx.Err() != nil { // its reader may have left before it was there
		ch.core.Abort(ch.seq, core.FinishAbort)
	}
}

// peerRequest is the question to the engine that computed a prompt. A request whose cache is pushed is known by its base name.
type peerRequest struct {
	Engine  string `json:"engine"`
	Request string `json:"request"`
	Base    bool   `json:"base"`
}

// peerPrompt is a prompt that the other engine keeps.
type peerPrompt struct {
	Request string `json:"request"`
	Print   uint64 `json:"print,string"`
}

// pushPoll is how often an engine looks whether the prompt that it waits for is there.
const pushPoll = 5 * time.Millisecond

// meet finds the prompt at the engine that computed it. Where caches are pushed it waits until there is one of this name: for good, when the
// other engine has met this one and died. It returns errLeft when the client left.
func (g exchange) meet(ctx context.Context, kv *kvTransfer, ch *choice) (*peerPrompt, error) {
	if g.isMooncake() {
		return g.meetByBootstrap(ctx, kv)
	}
	if !g.pushed() {
		return g.askPeer(ctx, kv, "read", *kv.RequestID)
	}
	for {
		at, err := g.askPeer(ctx, kv, "find", g.base(ch))
		_, met := g.l.met.Load(*kv.EngineID)
		switch {
		case err == nil && at.Request != "":
			return at, nil
		case ctx.Err() != nil:
			return nil, errLeft
		case err != nil && !met:
			sleep.For(ctx, time.Duration(float64(handshakeTimeout)/g.l.cfg.Core.Timing.Speed))
			return nil, err
		}
		sleep.For(ctx, pushPoll)
	}
}

// askPeer asks the engine that computed the prompt whether the blocks are there (read; find: by the base of their name), or lets it release
// them (done).
func (g exchange) askPeer(ctx context.Context, kv *kvTransfer, what, name string) (*peerPrompt, error) {
	body, err := json.Marshal(peerRequest{*kv.EngineID, name, what == "find"})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	url := "http://" + net.JoinHostPort(*kv.Host, strconv.Itoa(*kv.Port)) + "/sim/kv/" + what
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errLoad
	}
	g.l.met.Store(*kv.EngineID, true)
	at := new(peerPrompt)
	return at, json.UnmarshalRead(resp.Body, at)
}

// answerPeer answers another engine about the blocks of a prompt. An engine that has restarted since is another one.
func answerPeer(l *life, c *call, what string) {
	var req peerRequest
	if !adminBody(c, &req) {
		return
	}
	if req.Engine != l.engineID {
		c.reply(http.StatusNotFound, map[string]string{"detail": "another engine"})
		return
	}
	for _, co := range l.cores {
		name, print, ok := co.FindPin(func(name string) bool {
			return name == req.Request || req.Base && len(name) > suffix && name[:len(name)-suffix] == req.Request
		})
		if ok && (what != "done" || co.Unpin(name)) {
			c.reply(http.StatusOK, peerPrompt{name, print})
			return
		}
	}
	if req.Base { // it may come yet
		c.reply(http.StatusOK, peerPrompt{})
		return
	}
	c.reply(http.StatusNotFound, map[string]string{"detail": "no such blocks"})
}

// passed are the kv_transfer_params of the answer: null unless the prompt was computed for another engine and the answer ended for its length.
func (g exchange) passed(b text) text {
	if g.isMooncake() || !g.prefills() || len(g.choices) == 0 || g.choices[0].finish != "length" || g.pin == "" {
		return b.raw("null")
	}
	host, port := g.l.where()
	n := len(g.choices[0].prompt.ids) + len(g.choices[0].ids) - 1
	size := g.l.cfg.Core.BlockSize
	blocks := (n + size - 1) / size
	b = b.raw(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[`)
	b = b.list(blocks, '[', ']', func(b text, i int) text { return b.int(i + 1) })
	b = b.raw(`],"remote_engine_id":`).str(g.l.engineID).raw(`,"remote_request_id":`).str(g.pin).raw(`,"remote_host":`).str(host)
	b = b.raw(`,"remote_port":`).int(port).raw(`,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":`).int(n)
	if !g.pushed() {
		b = b.raw(`,"remote_blocks_expiry_time":null,"remote_registration_generation":1`)
	}
	b = b.raw(`,"transfer_mode":`).str(g.mode()).raw(`,"remote_prefill_cached_tokens":`).int(g.cached())
	return b.raw("}")
}

// mode is the direction of transfers.
func (g exchange) mode() string {
	if g.pushed() {
		return "push"
	}
	return "pull"
}

// where is the address that other engines reach this one at.
func (e *Engine) where() (host string, port int) {
	host, text, err := net.SplitHostPort(e.http.ln.Addr().String())
	if err != nil {
		return "127.0.0.1", 0
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	port, err = strconv.Atoi(text)
	if err != nil {
		return host, 0
	}
	return host, port
}

// kills reports whether the parameters end the engine: to read, vLLM asserts that it has blocks for the whole prompt, and where caches are
// pushed, it takes these members to be there.
func (g exchange) kills() bool {
	kv := g.s.KVTransfer
	if g.isMooncake() {
		return g.playsForeignRole()
	}
	if g.pushed() && kv != nil && kv.DoRemotePrefill {
		return !kv.complete() || kv.TPSize == nil
	}
	if !g.reads() {
		return false
	}
	blocks, size := 0, g.l.cfg.Core.BlockSize
	if ids := kv.BlockIDs; len(ids) > 0 {
		blocks = len(ids[0])
	}
	return blocks < (g.promptTokens+size-1)/size
}
