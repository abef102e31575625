package tokenizer

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/parity"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// model is the knowledge about one model.
type model struct {
	name    string
	set     ModelConfig
	parity  *parity.Guard
	learned learned
	sizes   blockSizes
	// generation counts how often all that is cached of the model was dropped.
	generation atomic.Uint64

	mu    sync.Mutex
	ratio float64 // guarded by mu; tokens per byte of raw prompt
}

// models are the knowledge about each model, by the name of its pool. They are safe for concurrent use.
type models struct {
	cfg     *Config
	metrics *metrics
	byName  sync.Map
}

func (ms *models) of(name string) *model {
	if m, ok := ms.byName.Load(name); ok {
		return m.(*model)
	}
	set := ms.cfg.Models[name]
	set.Handoff = cmp.Or(set.Handoff, ms.cfg.Handoff)
	fresh := &model{name: name, set: set, ratio: 0.25, parity: parity.New(name)}
	m, known := ms.byName.LoadOrStore(name, fresh)
	if !known {
		ms.metrics.known(name)
	}
	return m.(*model)
}

// all calls do with each model.
func (ms *models) all(do func(*model)) {
	ms.byName.Range(func(_, v any) bool { do(v.(*model)); return true })
}

// learnRatio notes that size bytes of prompt became n tokens.
func (m *model) learnRatio(size, n int) {
	if size < 64 || n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ratio += (float64(n)/float64(size) - m.ratio) * 0.05
}

// estimate guesses the tokens of size bytes.
func (m *model) estimate(size int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(float64(size)*m.ratio) + 1
}

// job is the question for a prompt's ids.
func (m *model) job(pr *prompt.Prompt) *remote.Job {
	return &remote.Job{
		Op: remote.OpPrompt, Model: pr.Model, Prompt: pr, NeedMedia: pr.HasMedia,
		TemplateDefaults: []byte(m.set.TemplateDefaults), DropToolsOnNone: m.set.DropToolsOnNone,
	}
}
