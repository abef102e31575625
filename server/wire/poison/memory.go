package poison

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/wire/retry"
)

const (
	// life is how long an entry is kept at least; it is dropped within twice that.
	life = time.Minute
	// maxRequests and maxTenants bound the entries that are kept, twice.
	maxRequests = 4096
	maxTenants  = 1024
	// credit is how many requests of a tenant may fail on two replicas before it is suspected, refill how many more per second.
	// At most twice the credit is remembered.
	credit = 10
	refill = 0.5
)

// Memory remembers requests by a keyed hash of tenant and content, and how many requests of each tenant failed on two replicas lately. It is
// safe for concurrent use.
type Memory struct {
	seed maphash.Seed

	mu       sync.Mutex
	requests generations[int]     // guarded by mu: how often two replicas failed it
	tenants  generations[account] // guarded by mu
}

// account counts a tenant's requests that failed on two replicas, less the forgiven ones since, as of a moment.
type account struct {
	failed float64
	at     time.Time
}

// New makes an empty memory.
func New() *Memory {
	return &Memory{seed: maphash.MakeSeed(), requests: newGenerations[int](maxRequests), tenants: newGenerations[account](maxTenants)}
}

// Origin names a request by its tenant and its parts.
func (m *Memory) Origin(tenant string, body []byte, parts ...string) retry.Origin {
	var h maphash.Hash
	h.SetSeed(m.seed)
	h.WriteString(tenant)
	o := retry.Origin{Tenant: named(h.Sum64())}
	for _, part := range parts {
		h.WriteByte(0)
		h.WriteString(part)
	}
	h.WriteByte(0)
	h.Write(body)
	o.Request = named(h.Sum64())
	return o
}

// Tenant names a tenant, as Origin does.
func (m *Memory) Tenant(tenant string) uint64 { return named(maphash.String(m.seed, tenant)) }

// named keeps zero for an unknown name.
func named(hash uint64) uint64 { return max(hash, 1) }

// Times is how often the request failed in the same way on two replicas.
func (m *Memory) Times(o retry.Origin) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, _ := m.requests.get(o.Request, time.Now())
	return n
}

// Suspect reports whether so many of the tenant's requests failed on two replicas lately that its failures are taken to be its own. A
// request of a suspect should not be sent to another replica only to find its fault.
func (m *Memory) Suspect(o retry.Origin) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.account(o).failed > credit-1
}

// Failed notes that two replicas failed the request in the same way.
func (m *Memory) Failed(o retry.Origin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	n, _ := m.requests.get(o.Request, now)
	m.requests.put(o.Request, n+1, now)
	a := m.account(o)
	a.failed = min(2*credit, a.failed+1)
	m.tenants.put(o.Tenant, a, now)
}

// served notes that another replica served the request: the first one was at fault.
func (m *Memory) served(o retry.Origin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.drop(o.Request)
	a := m.account(o)
	a.failed = max(0, a.failed-1)
	m.tenants.put(o.Tenant, a, a.at)
}

// Size counts the requests that are remembered.
func (m *Memory) Size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests.size(time.Now())
}

// account is the tenant's account now; mu is held.
func (m *Memory) account(o retry.Origin) account {
	now := time.Now()
	a, ok := m.tenants.get(o.Tenant, now)
	if !ok {
		return account{at: now}
	}
	return account{failed: max(0, a.failed-refill*max(now.Sub(a.at).Seconds(), 0)), at: now}
}
