package enginesim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// Transfer is how a replica passes KV cache on, as vLLM's NixlConnector does in its pull form.
type Transfer struct {
	// Connector is nixl, or empty for none.
	Connector string
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
	if t.Connector != "" && t.Connector != "nixl" {
		return fmt.Errorf("the connector must be nixl or empty, not %q", t.Connector)
	}
	if t.Start < 0 || t.PerToken < 0 || t.Lease < 0 {
		return errors.New("the times of transfers must not be negative")
	}
	return nil
}

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
	return g.l.cfg.Transfer.Connector != "" && kv != nil && kv.DoRemoteDecode
}

// reads reports whether the request's prompt is read from another engine.
func (g exchange) reads() bool {
	kv := g.s.KVTransfer
	return g.l.cfg.Transfer.Connector != "" && kv != nil && kv.DoRemotePrefill && kv.complete()
}

// pinName is the name of the request at the engine: unlike the client's id it is used once.
func (g exchange) pinName() string { return g.id + "-" + g.l.newID()[:8] }

// errLoad is why a prompt's cache could not be read.
var errLoad = errors.New("KV load failed")

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
	if err := g.askPeer(ctx, kv, "read"); err != nil {
		g.lost.Store(true)
		return
	}
	lacks := len(ch.prompt.ids) - ch.core.Holds(ch.seq)
	took := time.Duration(float64(t.Start+time.Duration(lacks)*t.PerToken) / g.l.cfg.Core.Timing.Speed)
	if !sleep(ctx, took) {
		return
	}
	if err := g.askPeer(ctx, kv, "done"); err != nil {
		g.lost.Store(true)
		return
	}
	ch.core.Receive(ch.seq)
	ch.core.Submit(ch.seq)
	if ctx.Err() != nil { // its reader may have left before it was there
		ch.core.Abort(ch.seq, core.FinishAbort)
	}
}

// peerRequest is the question to the engine that computed a prompt.
type peerRequest struct {
	Engine  string `json:"engine"`
	Request string `json:"request"`
}

// askPeer asks the engine that computed the prompt whether the blocks are there (read), or lets it release them (done).
func (g exchange) askPeer(ctx context.Context, kv *kvTransfer, what string) error {
	body, err := json.Marshal(peerRequest{*kv.EngineID, *kv.RequestID})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	url := "http://" + net.JoinHostPort(*kv.Host, strconv.Itoa(*kv.Port)) + "/sim/kv/" + what
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errLoad
	}
	return nil
}

// answerPeer answers another engine about the blocks of a prompt. An engine that has restarted since is another one.
func answerPeer(l *life, c *call, what string) {
	var req peerRequest
	if !adminBody(c, &req) {
		return
	}
	if req.Engine == l.engineID {
		for _, co := range l.cores {
			if what == "read" && co.HasPin(req.Request) || what == "done" && co.Unpin(req.Request) {
				c.reply(http.StatusOK, struct{}{})
				return
			}
		}
	}
	c.reply(http.StatusNotFound, map[string]string{"detail": "no such blocks"})
}

// passed are the kv_transfer_params of the answer: null unless the prompt was computed for another engine and the answer ended for its length.
func (g exchange) passed(b text) text {
	if !g.prefills() || len(g.choices) == 0 || g.choices[0].finish != "length" || g.pin == "" {
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
	b = b.raw(`,"remote_blocks_expiry_time":null,"remote_registration_generation":1,"transfer_mode":"pull","remote_prefill_cached_tokens":`).int(g.cached())
	return b.raw("}")
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

// kills reports whether the parameters end the engine: vLLM asserts that it has blocks for the whole prompt.
func (g exchange) kills() bool {
	if !g.reads() {
		return false
	}
	blocks, size := 0, g.l.cfg.Core.BlockSize
	if ids := g.s.KVTransfer.BlockIDs; len(ids) > 0 {
		blocks = len(ids[0])
	}
	return blocks < (g.promptTokens+size-1)/size
}
