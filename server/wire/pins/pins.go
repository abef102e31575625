package pins

import (
	"container/list"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// Pins remembers which replica stores a response, because an engine's store is in its own
// process, and which tenant it belongs to. It is bounded; the least recently used goes first. Safe for concurrent use.
type Pins struct {
	cfg Config

	mu    sync.Mutex
	byID  map[string]*list.Element // guarded by mu; the values are pin
	order *list.List               // guarded by mu; most recently used first
}

type pin struct {
	response string
	tenant   string
	replica  replica.ID
	at       time.Time
}

// New makes an empty memory.
func New(cfg Config) *Pins {
	return &Pins{cfg: cfg, byID: map[string]*list.Element{}, order: list.New()}
}

// Put remembers that the replica stores the tenant's response; an empty response is ignored, and so is one that belongs to
// another tenant.
func (p *Pins) Put(tenant, response string, id replica.ID) {
	if response == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	value := pin{response: response, tenant: tenant, replica: id, at: time.Now()}
	if e, ok := p.byID[response]; ok {
		if old := e.Value.(pin); old.tenant != tenant && value.at.Sub(old.at) <= p.cfg.TTL {
			return
		}
		e.Value = value
		p.order.MoveToFront(e)
		return
	}
	p.byID[response] = p.order.PushFront(value)
	for len(p.byID) > p.cfg.Max {
		p.drop(p.order.Back())
	}
}

// Owner relates a response to the asking tenant.
type Owner int

// The owners.
const (
	// OwnerUnknown: the response was not seen made, or that is long ago.
	OwnerUnknown Owner = iota
	OwnerSelf
	OwnerOther
)

// Get names the replica that stores the response, unless that is another tenant's. The empty tenant, of a router without
// keys, owns all.
func (p *Pins) Get(tenant, response string) (replica.ID, Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.byID[response]
	if !ok {
		return "", OwnerUnknown
	}
	found := e.Value.(pin)
	if time.Since(found.at) > p.cfg.TTL {
		p.drop(e)
		return "", OwnerUnknown
	}
	if tenant != "" && found.tenant != tenant {
		return "", OwnerOther
	}
	p.order.MoveToFront(e)
	return found.replica, OwnerSelf
}

// Find returns the owner and the replica of a response, whichever tenant it belongs to.
func (p *Pins) Find(response string) (tenant string, id replica.ID, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.byID[response]
	if !ok {
		return "", "", false
	}
	found := e.Value.(pin)
	if time.Since(found.at) > p.cfg.TTL {
		p.drop(e)
		return "", "", false
	}
	return found.tenant, found.replica, true
}

// drop forgets one response. The caller holds mu.
func (p *Pins) drop(e *list.Element) {
	delete(p.byID, p.order.Remove(e).(pin).response)
}
