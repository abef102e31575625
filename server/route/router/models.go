package router

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

// mustJSON marshals values of our own that always can be.
func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("router: " + err.Error())
	}
	return text
}
