package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// maxModels bounds the models and adapters of a replica.
	maxModels = 16384
	// maxRootLen bounds the path of a model, in bytes; maxContext its context, in tokens.
	maxRootLen = 4096
	maxContext = 1 << 30
	// maxVersionLen bounds the text of a version.
	maxVersionLen = 64
)

// isName reports whether a replica's word can name a model: it becomes the name of a pool and a label of metrics.
func isName(text string) bool {
	return text != "" && len(text) <= maxNameLen && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// readModels reads vLLM's answer, base models first. Models above maxModels, and names that are none, are left out.
func readModels(body []byte) ([]replica.Model, error) {
	var answer struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("probe /v1/models: %w", err)
	}
	if len(answer.Data) == 0 {
		return []replica.Model{}, nil
	}
	cards, err := readCapped[struct {
		ID     string  `json:"id"`
		Root   *string `json:"root"`
		Parent *string `json:"parent"`
		MaxLen *int    `json:"max_model_len"`
	}](answer.Data, maxModels)
	if err != nil {
		return nil, fmt.Errorf("probe /v1/models: %w", err)
	}
	models := make([]replica.Model, 0, len(cards))
	for _, card := range cards {
		if isName(card.ID) && len(deref(card.Root)) <= maxRootLen && len(deref(card.Parent)) <= maxNameLen {
			models = append(models, replica.Model{
				ID: card.ID, Root: deref(card.Root), Parent: deref(card.Parent), MaxLen: min(max(0, deref(card.MaxLen)), maxContext),
			})
		}
	}
	slices.SortStableFunc(models, func(a, b replica.Model) int {
		return min(len(a.Parent), 1) - min(len(b.Parent), 1)
	})
	return models, nil
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// readVersion reads vLLM's answer; anything else is an unknown version.
func readVersion(body []byte) *version {
	var answer struct {
		Version string `json:"version"`
		Rust    string `json:"rust_frontend_version"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return &version{}
	}
	if len(answer.Version) > maxVersionLen || !isName(answer.Version) {
		answer.Version = ""
	}
	return &version{text: answer.Version, rust: answer.Rust != ""}
}
