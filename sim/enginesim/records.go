package enginesim

import (
	"sync"
	"time"
)

// Record is one request as the engine saw it.
type Record struct {
	At          time.Time `json:"at"`
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	RequestID   string    `json:"request_id,omitzero"`
	Traceparent string    `json:"traceparent,omitzero"`
	Tracestate  string    `json:"tracestate,omitzero"`
	Session     string    `json:"session,omitzero"`
	Rank        string    `json:"rank,omitzero"`
	Life        uint64    `json:"life"`
	// The rest is known for generation once the prompt is.
	Model        string `json:"model,omitzero"`
	PromptTokens int    `json:"prompt_tokens,omitzero"`
	CachedTokens int    `json:"cached_tokens,omitzero"`
	OutputTokens int    `json:"output_tokens,omitzero"`
	GivenIDs     bool   `json:"given_ids,omitzero"`
	// Finish is "stop", "length", "tool_calls", or "abort" when the client left.
	Finish string `json:"finish,omitzero"`
	Status int    `json:"status,omitzero"`
}

// maxRecords bounds the memory of past requests.
const maxRecords = 4096

type recordBox struct {
	mu   sync.Mutex
	ring []*Record // guarded by mu, entries too
	next int       // guarded by mu
}

func (b *recordBox) add(r *Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ring) < maxRecords {
		b.ring = append(b.ring, r)
		return
	}
	b.ring[b.next] = r
	b.next = (b.next + 1) % maxRecords
}

func (b *recordBox) update(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// Requests returns the last requests, oldest first, at most 4,096.
func (e *Engine) Requests() []Record {
	b := &e.records
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Record, 0, len(b.ring))
	for i := range b.ring {
		list = append(list, *b.ring[(b.next+i)%len(b.ring)])
	}
	return list
}

// ForgetRequests empties the list that Requests returns.
func (e *Engine) ForgetRequests() {
	e.records.mu.Lock()
	defer e.records.mu.Unlock()
	e.records.ring, e.records.next = nil, 0
}
