package facts

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// findTimeout bounds the question for a pin, before which a request waits.
const findTimeout = 200 * time.Millisecond

// maxResponseID bounds the ids of stored responses.
const maxResponseID = 512

// PinMade notes that a replica stores a tenant's response: the router that is to keep this pin is notified.
func (s *Store) PinMade(tenant, response string, id replica.ID) {
	if n := s.keeper(response); n != nil && len(response) <= maxResponseID && utf8.ValidString(response) {
		n.addPin(&peerv1.PinFact{Tenant: tenant, ResponseId: response, ReplicaId: string(id)})
	}
}

// FindPin asks the router that is to keep a response's pin for it, and enters it in this router's pins.
func (s *Store) FindPin(ctx context.Context, response string) bool {
	n := s.keeper(response)
	if n == nil || s.params.Pins == nil || len(response) > maxResponseID || !utf8.ValidString(response) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	out, err := n.client.ShareFacts(ctx, &peerv1.ShareFactsRequest{
		Digest: s.digest(), WantedResponses: []string{response},
	})
	if err != nil {
		s.metrics.Pins.Add("failed")
		return false
	}
	for _, p := range out.GetFacts().GetPins() {
		if p.GetResponseId() == response && p.GetReplicaId() != "" {
			s.metrics.Pins.Add("found")
			s.params.Pins.Put(p.GetTenant(), response, replica.ID(p.GetReplicaId()))
			return true
		}
	}
	s.metrics.Pins.Add("unknown")
	return false
}

// keeper is the sender to the router that keeps a response's pin: the highest hash of the response and a router's id. It is nil
// when that is this router.
func (s *Store) keeper(response string) *sender {
	best, at := xxh3.HashString(response+"/"+s.params.Self), (*sender)(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.senders {
		if h := xxh3.HashString(response + "/" + id); h > best {
			best, at = h, n
		}
	}
	return at
}

func (s *Store) keepPins(pins []*peerv1.PinFact) {
	if s.params.Pins == nil {
		return
	}
	for _, p := range pins {
		if n := len(p.GetResponseId()); n > 0 && n <= maxResponseID && len(p.GetTenant()) <= maxName && len(p.GetReplicaId()) <= maxName {
			s.params.Pins.Put(p.GetTenant(), p.GetResponseId(), replica.ID(p.GetReplicaId()))
		}
	}
}

func (s *Store) findPins(wanted []string) (found []*peerv1.PinFact) {
	if s.params.Pins == nil {
		return nil
	}
	for _, response := range wanted {
		if tenant, id, ok := s.params.Pins.Find(response); ok {
			found = append(found, &peerv1.PinFact{Tenant: tenant, ResponseId: response, ReplicaId: string(id)})
		}
	}
	return found
}
