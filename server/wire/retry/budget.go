package retry

import (
	"sync"
	"time"
)

// Budget bounds retries to a share of the requests, so that a fleet in trouble is not hit
// with a multiple of its load. It is safe for concurrent use.
type Budget struct {
	mu     sync.Mutex
	cfg    Config    // guarded by mu
	tokens float64   // guarded by mu
	last   time.Time // guarded by mu
}

// budgetSeconds is how many seconds of MinPerSecond may be saved up.
const budgetSeconds = 10

// NewBudget makes a budget that is full.
func NewBudget(cfg Config) *Budget {
	return &Budget{cfg: cfg, tokens: capacity(cfg), last: time.Now()}
}

func capacity(cfg Config) float64 {
	return max(cfg.MinPerSecond*budgetSeconds, cfg.Ratio*100, 1)
}

// Update puts a new budget in force; the savings stay, as far as the new one allows.
func (b *Budget) Update(cfg Config) {
	b.mu.Lock()
	b.cfg = cfg
	b.tokens = min(b.tokens, capacity(cfg))
	b.mu.Unlock()
}

// Deposit counts a request's first attempt, which earns Ratio of a retry.
func (b *Budget) Deposit() {
	b.mu.Lock()
	b.tokens = min(b.tokens+b.cfg.Ratio, capacity(b.cfg))
	b.mu.Unlock()
}

// Withdraw asks for one retry.
func (b *Budget) Withdraw() bool { return b.withdraw(0) }

// WithdrawSpare asks for one retry, and leaves half of the budget to others.
func (b *Budget) WithdrawSpare() bool { return b.withdraw(0.5) }

// withdraw asks for one retry, and leaves a share of the full budget.
func (b *Budget) withdraw(leave float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.tokens+b.cfg.MinPerSecond*max(now.Sub(b.last).Seconds(), 0), capacity(b.cfg))
	b.last = now
	if b.tokens < 1+leave*capacity(b.cfg) {
		return false
	}
	b.tokens--
	return true
}
