package programs

import (
	"sync"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Ranks are the accounts of the ranks' memory, which all ledgers of a router share: a rank may serve several models, aliases and adapters,
// from one memory. Make them with NewRanks. They are safe for concurrent use.
type Ranks struct {
	mu       sync.Mutex // guards the ledgers, too: an account has the programs of all of them
	accounts []*account // by slot; guarded by mu
}

// NewRanks returns accounts without a rank.
func NewRanks() *Ranks { return &Ranks{} }

// at is the account of a rank. mu is held.
func (m *Ranks) at(slot replica.Slot) *account {
	for int(slot) >= len(m.accounts) {
		m.accounts = append(m.accounts, &account{slot: replica.Slot(len(m.accounts))})
	}
	return m.accounts[slot]
}

// read notes a choice's knowledge of a rank. mu is held.
func (m *Ranks) read(r *Rank) *account {
	a := m.at(r.Slot)
	a.capacity, a.booked, a.pace = r.Capacity, r.Booked, r.Pace
	return a
}

// Remove forgets the places on a rank, of all ledgers.
func (m *Ranks) Remove(slot replica.Slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int(slot) >= len(m.accounts) {
		return
	}
	for a := m.accounts[slot]; len(a.programs) > 0; {
		a.programs[0].leave()
	}
	m.accounts[slot] = &account{slot: slot}
}
