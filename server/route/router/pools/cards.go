package pools

import (
	"encoding/json"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// modelCard is one entry of /v1/models, as vLLM writes it.
type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        *string `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
	Permission  []any   `json:"permission"`
}

func card(p *registry.Pool) modelCard {
	c := modelCard{ID: p.Model, Object: "model", OwnedBy: "vllm", Permission: []any{}}
	for _, r := range p.Replicas {
		if at := r.Since.Unix(); r.State == replica.StateReady && (c.Created == 0 || at < c.Created) {
			c.Created = at
		}
	}
	if p.Entry.Root != "" {
		c.Root = &p.Entry.Root
	}
	if p.Entry.Parent != "" {
		c.Parent = &p.Entry.Parent
	}
	if p.Entry.MaxLen > 0 {
		c.MaxModelLen = &p.Entry.MaxLen
	}
	return c
}

// Cards is the list of all pools, as GET /v1/models answers.
func Cards(s *registry.Snapshot) ([]byte, error) {
	cards := []modelCard{}
	for _, pool := range s.Models() {
		cards = append(cards, card(pool))
	}
	return json.Marshal(struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", cards})
}

// Card is the entry of one pool, as GET /v1/models/{id} answers.
func Card(p *registry.Pool) ([]byte, error) { return json.Marshal(card(p)) }
