package enginesim

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Faults are the injected faults, by the hop that breaks. The zero value: nothing.
type Faults struct {
	Where
	ConnectionFaults
	AnswerFaults
	StreamFaults
	EngineFaults
}

// Where limits the faults of requests.
type Where struct {
	// Paths limits them to paths with one of these prefixes; none: all paths.
	Paths []string `json:"paths,omitzero"`
	// Poison limits them to requests with this text in their body; empty: all requests.
	Poison string `json:"poison,omitzero"`
	// Times is after how many requests they end by themselves; 0: never.
	Times int `json:"times,omitzero"`
}

// ConnectionFaults are the faults of the way to the engine and back.
type ConnectionFaults struct {
	// Slow waits before answering.
	Slow Duration `json:"slow,omitzero"`
	// Hang never answers. Cut closes the connection without an answer. HalfBody announces the whole body and sends half.
	Hang     bool `json:"hang,omitzero"`
	Cut      bool `json:"cut,omitzero"`
	HalfBody bool `json:"half_body,omitzero"`
}

// AnswerFaults are wrong answers.
type AnswerFaults struct {
	// Status answers an error of this status, with RetryAfter seconds when above zero. Body answers these bytes,
	// with Status or 200.
	Status     int    `json:"status,omitzero"`
	RetryAfter int    `json:"retry_after,omitzero"`
	Body       string `json:"body,omitzero"`
	// WrongJSON sends something that is not JSON. StringCodes writes errors as the Rust front end does.
	WrongJSON   bool `json:"wrong_json,omitzero"`
	StringCodes bool `json:"string_codes,omitzero"`
	// Scaling answers 503 to everything, as during elastic scaling.
	Scaling bool `json:"scaling,omitzero"`
	// WrongIDs makes /tokenize and /render answer ids that the engine does not use.
	WrongIDs bool `json:"wrong_ids,omitzero"`
}

// StreamFaults are the faults of an answer that has begun.
type StreamFaults struct {
	// DieAfter cuts a stream's connection after so many chunks; StallAfter sends nothing more
	// after them; ErrorAfter sends an error object and [DONE].
	DieAfter   int `json:"die_after,omitzero"`
	StallAfter int `json:"stall_after,omitzero"`
	ErrorAfter int `json:"error_after,omitzero"`
	// NoDone leaves [DONE] out of streams, as some engines do. Linger keeps a stream open for so long behind its
	// last event.
	NoDone bool     `json:"no_done,omitzero"`
	Linger Duration `json:"linger,omitzero"`
	// Drip gives the first token of an answer at once, whatever the prompt, and another one each time; the engine computes nothing.
	// Empty ends a stream of chat or completions with [DONE] before its first token.
	Drip  Duration `json:"drip,omitzero"`
	Empty bool     `json:"empty,omitzero"`
}

// EngineFaults are the faults of the engine behind the HTTP server. They do not depend on Where.
type EngineFaults struct {
	// Stall stops the engine's steps: requests are accepted and nothing is computed.
	Stall bool `json:"stall,omitzero"`
	// Recompute makes every transfer of a prompt's cache fail without a word: the engine computes the prompt, as with vLLM's kv_load_failure_policy
	// recompute.
	Recompute bool `json:"recompute,omitzero"`
	// LieEvents writes wrong token ids into events. DropEvents loses every nth batch on its way
	// (a replay has it); HoleEvents loses it for good. StopEvents publishes nothing at all.
	LieEvents  bool `json:"lie_events,omitzero"`
	DropEvents int  `json:"drop_events,omitzero"`
	HoleEvents int  `json:"hole_events,omitzero"`
	StopEvents bool `json:"stop_events,omitzero"`
}

// Duration is a time.Duration that JSON writes as "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// SetFaults replaces the faults.
func (e *Engine) SetFaults(f Faults) {
	e.faults.set(f)
	if l := e.life.Load(); l != nil {
		for _, c := range l.cores {
			c.Pause(f.Stall)
		}
	}
}

type faultBox struct {
	mu   sync.Mutex
	now  Faults // guarded by mu
	left int    // guarded by mu: requests that still fail, when Times is set
}

func (b *faultBox) set(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now, b.left = f, f.Times
}

func (b *faultBox) get() Faults {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// request gives the faults of one request, and counts it.
func (b *faultBox) request(r *http.Request) Faults {
	path := r.URL.Path
	if text := b.get().Poison; text != "" && !carries(r, text) {
		return Faults{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.now
	if len(f.Paths) > 0 && !hasPrefix(path, f.Paths) {
		return Faults{}
	}
	if f.Times > 0 {
		if b.left == 0 {
			return Faults{}
		}
		b.left--
	}
	return f
}

// carries reports whether the body of r has the text; the body can be read again.
func carries(r *http.Request, text string) bool {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	return err == nil && bytes.Contains(body, []byte(text))
}

func hasPrefix(path string, list []string) bool {
	for _, p := range list {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}
