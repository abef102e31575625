package enginesim

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
	"github.com/kvpilot/kvpilot/sim/enginesim/vocab"
)

// Config describes one simulated replica.
type Config struct {
	// Models are the served names; the first one is the primary name.
	Models []string
	// Adapters are LoRA adapters, listed as models of their own. AdapterUpdates serves the calls that load and unload others
	// (VLLM_ALLOW_RUNTIME_LORA_UPDATING).
	Adapters       []string
	AdapterUpdates bool
	// Version is the vLLM version to imitate, for example "0.32.0".
	Version string
	// Rust imitates the Rust front end.
	Rust bool
	// NoParser imitates an engine without a tool parser and a reasoning parser: its chats are one text.
	NoParser bool
	// Ranks is the number of data-parallel ranks behind the one HTTP address.
	Ranks int
	// Core is the hardware and model of each rank.
	Core core.Config
	Flags
	Publishing
	// Transfer is the KV connector.
	Transfer Transfer
	// MeanAnswer is the mean length in tokens of an answer that nothing cuts short.
	MeanAnswer int
	// KeepAlive is how long an idle connection stays open; vLLM's is five seconds.
	KeepAlive time.Duration
	// APIKey guards /v1 when not empty.
	APIKey string
	// Vocabulary replaces the tokenizer and the chat template of package vocab when not nil.
	Vocabulary Vocabulary
}

// Flags are options of vLLM's command line.
type Flags struct {
	// TokenDetails reports cached_tokens (--enable-prompt-tokens-details).
	TokenDetails bool
	// ScaleOut serves /render where the version asks for --enable-scale-out.
	ScaleOut bool
	// SleepMode serves /sleep, /wake_up and /is_sleeping, as with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1.
	SleepMode bool
	// RequestIDHeader answers X-Request-Id (--enable-request-id-headers).
	RequestIDHeader bool
}

// Publishing is how each rank publishes its KV events.
type Publishing struct {
	// BytesHashes writes event hashes as byte strings.
	BytesHashes bool
	// Topic is the topic of the events; ReplayBuffer how many batches are kept for replays.
	Topic        string
	ReplayBuffer int
}

// Vocabulary is a tokenizer with a chat template. It must be safe for concurrent use. Answers are written
// in the words of package vocab all the same.
type Vocabulary interface {
	// Encode gives the ids of a text, behind the tokens that open a prompt when addSpecial is set.
	Encode(text string, addSpecial bool) []uint32
	// Decode gives the text of ids, special tokens included.
	Decode(ids []uint32) string
	// Render gives the ids of a conversation. Its error is the message of the engine's 400.
	Render(c vocab.Chat) (vocab.Rendered, error)
}

// vocabulary is package vocab as a Vocabulary.
type vocabulary struct{}

func (vocabulary) Encode(text string, addSpecial bool) []uint32 {
	return vocab.EncodePrompt(text, addSpecial)
}
func (vocabulary) Decode(ids []uint32) string                  { return string(vocab.Decode(nil, ids, false)) }
func (vocabulary) Render(c vocab.Chat) (vocab.Rendered, error) { return vocab.Render(c) }

// DefaultConfig is one rank of a 70B model with everything that a router likes switched on.
func DefaultConfig() Config {
	return Config{
		Models: []string{"sim"}, Version: "0.32.0", Ranks: 1, Core: core.DefaultConfig(),
		Flags: Flags{TokenDetails: true, ScaleOut: true}, Publishing: Publishing{ReplayBuffer: 10_000}, Transfer: defaultTransfer(), MeanAnswer: 128, KeepAlive: 5 * time.Second,
	}
}

// Validate reports every bad field.
func (c Config) Validate() error {
	var errs []error
	if len(c.Models) == 0 {
		errs = append(errs, errors.New("a replica needs a model name"))
	}
	if _, err := parseVersion(c.Version); err != nil {
		errs = append(errs, err)
	}
	if c.Ranks < 1 {
		errs = append(errs, fmt.Errorf("%d ranks: there must be at least one", c.Ranks))
	}
	if c.MeanAnswer < 1 {
		errs = append(errs, errors.New("the mean answer must have at least one token"))
	}
	if c.KeepAlive < 0 {
		errs = append(errs, errors.New("the keep-alive time must not be negative"))
	}
	return errors.Join(append(errs, c.Core.Validate(), c.Transfer.validate())...)
}

// dialect is how a version and a front end read requests and word answers. Its only state is the adapters that are served.
type dialect struct {
	cfg      Config
	features features
	adapters *adapters
}
