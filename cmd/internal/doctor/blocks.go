package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/tlspeer"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

const (
	// publishing is how long after its answer the blocks of a request may take to be published and applied.
	publishing = 5 * time.Second
	// mostAnswer bounds the bytes read of an answer.
	mostAnswer = 1 << 20
)

// get asks a replica with the router's key and certificates.
func (s *setup) get(ctx context.Context, r *replica.Replica, url string) (*http.Response, error) {
	return s.send(ctx, r, http.MethodGet, url, nil, nil)
}

func (s *setup) send(ctx context.Context, r *replica.Replica, method, url string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(tlspeer.With(ctx, r.TLS), method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	if !r.APIKey.IsEmpty() {
		req.Header.Set("Authorization", "Bearer "+r.APIKey.Reveal())
	}
	return s.client.Do(req)
}

// sentAt is when a request was last sent to a rank.
func (s *setup) sentAt(slot replica.Slot) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, known := s.sent[slot]
	return at, known
}

// checkBlocks sends each rank a prompt that no cache holds, and compares the blocks that the router predicts for it with the blocks that
// the rank publishes.
func checkBlocks(ctx context.Context, in scope) []Finding {
	if in.params.NoSend {
		return []Finding{skip("", "--no-send: no request is sent")}
	}
	if !in.conf.Tokenizer.Enabled {
		return []Finding{skip("", "tokenizer.enabled is false: nothing is predicted")}
	}
	in.mu.Lock()
	in.keeping = true
	in.mu.Unlock()
	return in.eachRank(func(r *replica.Replica, rank int, slot replica.Slot) []Finding {
		return in.blocksOf(ctx, r, rank, slot)
	})
}

// trial is a prompt with the router's prediction for it.
type trial struct {
	text string
	ids  []uint32
	size int // of a block
	want []blockhash.Hash
}

// tries bounds the requests to a rank: a replay may bring the blocks of one before the event itself arrives.
const tries = 3

func (in scope) blocksOf(ctx context.Context, r *replica.Replica, rank int, slot replica.Slot) []Finding {
	subject := rankName(r, rank)
	seen := ""
	for range tries {
		t, found := in.trialFor(ctx, r, slot)
		if found != nil {
			found[0].Subject = subject
			return found
		}
		live := in.live(slot)
		in.mu.Lock()
		delete(in.stored, slot) // replayed blocks are about other prompts
		in.sent[slot] = time.Now()
		in.mu.Unlock()
		if found := in.complete(ctx, r, rank, t); found != nil {
			return found
		}
		held, arrived := in.await(ctx, slot, t)
		s, _ := in.observer.Events.Status(slot)
		if found := (sockets{in}).foreign(ctx, r, rank, s); found != nil {
			return found
		}
		if !arrived {
			return in.unlike(r, rank, slot, t, held, in.live(slot) > live)
		}
		seen = fmt.Sprintf("%d blocks of %d tokens predicted and published", held, t.size)
		if in.live(slot) > live {
			return []Finding{ok(subject, "%s", seen)}
		}
	}
	return fault(Fail, subject, "events as they happen", seen+", but they came by replays alone", "set events.topic to the topic of --kv-events-config, or to nothing, which takes all")
}

// live is how many batches came as they were published, and not by a replay.
func (in scope) live(slot replica.Slot) uint64 {
	s, _ := in.observer.Events.Status(slot)
	return s.Batches - s.Replayed
}

// await waits until the index has the blocks of a trial on the rank.
func (in scope) await(ctx context.Context, slot replica.Slot, t *trial) (held int, arrived bool) {
	bounded, cancel := context.WithTimeout(ctx, publishing)
	defer cancel()
	arrived = wait(bounded, func() bool {
		held = in.held(slot, t)
		return held+in.lookahead(slot, t.size) >= len(t.want)
	})
	return held, arrived
}

// held is how many leading blocks of the trial the index knows to be on the rank.
func (in scope) held(slot replica.Slot, t *trial) int {
	for _, o := range in.observer.Index.Match(make([]kvindex.Overlap, 0, 8), t.want) {
		if o.Slot == slot {
			return int(o.GPU)
		}
	}
	return 0
}

// lookahead is how many blocks at the end of a prompt a rank that speculates does not find.
func (in scope) lookahead(slot replica.Slot, size int) int {
	most := 0
	for _, ev := range in.published(slot) {
		most = max(most, ev.Lookahead)
	}
	return (most + size - 1) / size
}

func (in scope) published(slot replica.Slot) []kvblock.Stored {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.stored[slot])
}

// trialFor makes a prompt of at least two blocks, unless the model's context is shorter.
func (in scope) trialFor(ctx context.Context, r *replica.Replica, slot replica.Slot) (*trial, []Finding) {
	t := &trial{size: cmp.Or(in.observer.Index.BlockSize(slot), r.BlockSize)}
	if e, err := in.measured(ctx, r); t.size == 0 && err == nil {
		t.size = e.BlockSize
	}
	if t.size == 0 {
		return nil, []Finding{skip("", "the block size is not known: set block_size of the replica")}
	}
	name := model(r)
	entry, _ := r.Serves(name)
	words := t.size
	for range 4 {
		t.text = unheardOf(words)
		a, err := in.ask(ctx, r, &remote.Job{Op: remote.OpPrompt, Model: name, Prompt: &prompt.Prompt{Kind: prompt.KindText, API: prompt.APICompletions, Model: name, Text: t.text}})
		if err != nil {
			return nil, noTokens("", r, err)
		}
		t.ids = a.IDs[0]
		limit := cmp.Or(entry.MaxLen, 1<<20) - 2
		switch {
		case limit < t.size:
			return nil, []Finding{skip("", "the context of %s is shorter than a block", name)}
		case len(t.ids) > limit:
			words = max(1, words*limit/len(t.ids)*9/10)
		case len(t.ids) < 2*t.size && 2*t.size < limit:
			words = words*2*t.size/max(1, len(t.ids)) + 8
		default:
			t.want = blockhash.Chain(nil, t.ids, t.size, blockhash.Namespace{})
			return t, nil
		}
	}
	return nil, []Finding{skip("", "no prompt of a fitting length was found")}
}

// unheardOf is a text of so many words that no cache holds.
func unheardOf(words int) string {
	var b strings.Builder
	b.WriteString(rand.Text())
	for range words {
		b.WriteByte(' ')
		b.WriteString(rand.Text()[:4])
	}
	return b.String()
}

// complete sends the trial, for one token of output. A nil result is success.
func (in scope) complete(ctx context.Context, r *replica.Replica, rank int, t *trial) []Finding {
	subject := rankName(r, rank)
	body, err := json.Marshal(map[string]any{"model": model(r), "prompt": t.text, "max_tokens": 1, "temperature": 0, "stream": false})
	if err != nil {
		return fault(Fail, subject, "a request", err.Error(), "report this")
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if len(r.Slots) > 1 {
		header.Set("X-Data-Parallel-Rank", strconv.Itoa(rank))
	}
	expected := "an answer of one token to POST " + r.URL + "/v1/completions"
	resp, err := in.send(ctx, r, http.MethodPost, r.URL+"/v1/completions", header, body)
	if err != nil {
		return fault(Fail, subject, expected, oneLine(err), "the replica is healthy and does not answer a request: look at its log; is it paused (POST /resume) or stalled?")
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return []Finding{skip(subject, "the replica has no /v1/completions (a model that does not generate)")}
	case err != nil:
		return fault(Fail, subject, expected, oneLine(err), "look at the replica's log")
	case resp.StatusCode != http.StatusOK:
		return fault(Fail, subject, expected, fmt.Sprintf("status %d: %.150q", resp.StatusCode, text), "look at the replica's log")
	}
	return nil
}

// unlike explains why the predicted blocks were not among the published ones. heard reports whether any event came.
func (in scope) unlike(r *replica.Replica, rank int, slot replica.Slot, t *trial, held int, heard bool) []Finding {
	subject, expected := rankName(r, rank), fmt.Sprintf("%d blocks of %d tokens in KV events after a request of %d tokens", len(t.want), t.size, len(t.ids))
	best, at := bestMatch(in.published(slot), t.ids)
	if best == nil || at < t.size {
		for other, elsewhere := range r.Slots {
			if _, n := bestMatch(in.published(elsewhere), t.ids); other != rank && n >= t.size {
				return fault(Fail, subject, expected, fmt.Sprintf("they were published by rank %d", other), "the addresses of the ranks are in another order, or the header X-data-parallel-rank does not reach vLLM: write events.endpoint with {rank}, and let proxies pass the header")
			}
		}
	}
	s, _ := in.observer.Events.Status(slot)
	switch {
	case best == nil || !heard && at < t.size:
		return fault(Fail, subject, expected, "no event came within "+publishing.String(), `is this the event socket of this replica's engine, with "enable_kv_cache_events":true and "publisher":"zmq", and does events.topic match its topic? Is prefix caching on?`)
	case best.BlockSize != t.size:
		return fault(Fail, subject, expected, fmt.Sprintf("blocks of %d tokens", best.BlockSize), fmt.Sprintf("set block_size: %d of the replica, or remove it", best.BlockSize))
	case at < min(len(best.Tokens), len(t.ids)):
		return fault(Fail, subject, expected, fmt.Sprintf("blocks of other tokens: %s", difference(t.ids, best.Tokens, "the tokenizer", "the engine's events")),
			"the engine does not use the ids that its own /tokenize or /render gives: is there one vLLM behind the URL, and do the events come from the same one? For gpt-oss and Mistral use vLLM 0.18 or later")
	case best.Ambiguous || best.Salt != "" || best.Adapter != "":
		return fault(Fail, subject, expected, fmt.Sprintf("blocks under a salt %q or adapter %q", best.Salt, best.Adapter), "does a proxy between router and replica add cache_salt or another model's name?")
	}
	return fault(Fail, subject, expected, fmt.Sprintf("%d of them; feed %s, %d gaps, %d events that do not fit; %s", held, s.State, s.Gaps, s.Misfits, s.LastError), "batches are lost: see the check replay, and the network between router and engine")
}

// bestMatch is the root event that shares the longest beginning with ids.
func bestMatch(list []kvblock.Stored, ids []uint32) (best *kvblock.Stored, shared int) {
	for i := range list {
		ev := &list[i]
		if ev.HasParent || len(ev.Tokens) == 0 || ev.Tier != kvblock.TierGPU || ev.Kind == kvblock.KindWindow || ev.Kind == kvblock.KindMamba {
			continue
		}
		if n := parity.CommonPrefix(ev.Tokens, ids); best == nil || n > shared {
			best, shared = ev, n
		}
	}
	return best, shared
}
