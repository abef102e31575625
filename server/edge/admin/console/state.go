package console

import (
	"context"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// State is what the page shows of the router at one moment.
type State struct {
	At      time.Time `json:"at"`
	Version string    `json:"version"`
	Uptime  float64   `json:"uptime_s"`
	// NotReady says why the router should get no requests; empty when it should.
	NotReady string    `json:"not_ready,omitempty"`
	Replicas []Replica `json:"replicas"`
	Index    Index     `json:"index"`
	Queue    Queue     `json:"queue"`
	Parity   []Parity  `json:"parity"`
	Policy   Policy    `json:"policy"`
	History  []Second  `json:"history"`
	// Minute sums up the last minute.
	Minute Minute  `json:"minute"`
	Recent []Entry `json:"recent"`
}

// Replica is one replica with its ranks.
type Replica struct {
	ID      string    `json:"id"`
	URL     string    `json:"url"`
	State   string    `json:"state"`
	Since   time.Time `json:"since"`
	Version string    `json:"version,omitempty"`
	Models  []string  `json:"models"`
	Drained bool      `json:"drained,omitempty"`
	Breaker string    `json:"breaker"`
	Error   string    `json:"error,omitempty"`
	Ranks   []Rank    `json:"ranks"`
}

// Rank is one rank's load, cache and pace.
type Rank struct {
	Index int `json:"rank"`
	// Feed is the state of its events; FeedError what went wrong last.
	Feed      string `json:"feed"`
	FeedError string `json:"feed_error,omitempty"`
	// LagMS is how long its last batch of events waited here; Gaps and Resets count since start.
	LagMS  float64 `json:"lag_ms"`
	Gaps   uint64  `json:"gaps"`
	Resets uint64  `json:"resets"`
	// Blocks are held on the GPU, Capacity is how many fit, LowerBlocks are in other tiers.
	Blocks      int     `json:"blocks"`
	LowerBlocks int     `json:"lower_blocks"`
	Capacity    int     `json:"capacity"`
	BlockSize   int     `json:"block_size"`
	InFlight    int     `json:"in_flight"`
	Prefilling  int     `json:"prefilling"`
	QueuedMS    float64 `json:"queued_ms"`
	QueuedToks  float64 `json:"queued_tokens"`
	Decode      float64 `json:"decode_blocks"`
	// EngineRunning, EngineWaiting and KVUsage are the engine's own report; -1 when there is none.
	EngineRunning int     `json:"engine_running"`
	EngineWaiting int     `json:"engine_waiting"`
	KVUsage       float64 `json:"kv_usage"`
	// TokensPerSecond is the learned prefill rate, StepMS the learned decode step; Samples is 0
	// while both are only assumed. Busy is the share of the last minute spent on prefill.
	TokensPerSecond float64 `json:"tokens_per_s"`
	StepMS          float64 `json:"step_ms"`
	Samples         int     `json:"samples"`
	// Spread is the uncertainty of the rate as a share of it, Source where it comes from, and
	// PredictionError the mean of predicted ÷ actual time to the first token of late.
	Spread          float64 `json:"spread"`
	Source          string  `json:"source"`
	PredictionError float64 `json:"prediction_error"`
	Busy            float64 `json:"busy"`
}

// Index is the block index as a whole.
type Index struct {
	Blocks    int64 `json:"blocks"`
	MaxBlocks int64 `json:"max_blocks"`
	Bytes     int64 `json:"bytes"`
	Cut       bool  `json:"cut"`
}

// Queue is the hold queue, and what is booked.
type Queue struct {
	Waiting int `json:"waiting"`
	Booked  int `json:"booked"`
}

// Parity is how well one model's tokenization agrees with its engines.
type Parity struct {
	Model  string `json:"model"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Policy is the policy in use.
type Policy struct {
	Name   string `json:"name"`
	Shadow string `json:"shadow,omitempty"`
}

// Entry is a decision with its outcome, cut down to a line of a list.
type Entry struct {
	ID        string    `json:"id"`
	RequestID string    `json:"request_id"`
	At        time.Time `json:"at"`
	Model     string    `json:"model"`
	Policy    string    `json:"policy"`
	Reason    string    `json:"reason"`
	Replica   string    `json:"replica"`
	Rank      int       `json:"rank"`
	Tokens    int       `json:"prompt_tokens"`
	Overlap   int       `json:"overlap_tokens"`
	HeldMS    float64   `json:"held_ms"`
	// PredictedMS and TTFTMS are times to the first token; CachedTokens what the engine found, -1
	// when it did not say. End is empty while the request runs.
	PredictedMS  float64 `json:"predicted_ms"`
	TTFTMS       float64 `json:"ttft_ms"`
	CachedTokens int     `json:"cached_tokens"`
	End          string  `json:"end"`
	DryRun       bool    `json:"dry_run,omitempty"`
}

// Full is a decision with every candidate, and how it ended.
type Full struct {
	Decision *decision.Decision `json:"decision"`
	Outcome  *decision.Outcome  `json:"outcome,omitempty"`
}

// Trace is one request's spans.
type Trace struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	At       time.Time `json:"at"`
	Duration float64   `json:"ms"`
	Failed   bool      `json:"failed"`
	Spans    []Span    `json:"spans"`
}

// Span is one step of a trace; times are milliseconds from the trace's beginning.
type Span struct {
	ID         string            `json:"id"`
	Parent     string            `json:"parent"`
	Name       string            `json:"name"`
	Start      float64           `json:"start"`
	Duration   float64           `json:"ms"`
	Failed     bool              `json:"failed,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Events     []Event           `json:"events,omitempty"`
}

// Event is a moment of a span, in milliseconds from the trace's beginning.
type Event struct {
	Name string  `json:"name"`
	At   float64 `json:"at"`
}

// Source is what the console asks of the router. Its methods are safe for concurrent use.
type Source interface {
	// State puts the present state together, without History.
	State() State
	// Explain returns every attempt of a decision, or of the decisions of a request id.
	Explain(id string) []Full
	// Traces returns the last traces, newest first.
	Traces() []Trace
	// DryRun says where a prompt would go. A body is an OpenAI request, a text a plain prompt.
	DryRun(ctx context.Context, model, text string, body []byte) (*decision.Decision, error)
}
