package registry

import (
	"fmt"
	"strings"

	"github.com/kvpilot/kvpilot/server/kit/suggest"
)

const (
	// modelsNamed bounds the models that an error names, modelsCompared the models that a misspelt name is compared with.
	modelsNamed    = 8
	modelsCompared = 256
	// nameShown bounds a name in an error.
	nameShown = 128
)

// UnknownModel is the sentence for a model that no pool has: engines' own, the name that is probably meant, and the models that there are. Every
// caller that may name a model may also list all of them.
func (s *Snapshot) UnknownModel(name string) string {
	text := "The model `" + shorten(name) + "` does not exist."
	if len(s.names) <= modelsCompared {
		known := make([]string, len(s.names))
		for i, p := range s.names {
			known[i] = p.Model
		}
		if near := suggest.Near(name, known); near != nil {
			text += " Did you mean `" + strings.Join(near, "` or `") + "`?"
		}
	}
	return text + s.KnownModels()
}

// KnownModels is a sentence that lists the models, the first ones by name when there are many; empty when there are none.
func (s *Snapshot) KnownModels() string {
	var names []string
	for _, p := range s.names[:min(len(s.names), modelsNamed)] {
		names = append(names, "`"+shorten(p.Model)+"`")
	}
	switch more := len(s.names) - len(names); {
	case len(names) == 0:
		return ""
	case more > 0:
		return fmt.Sprintf(" Known models are %s and %d more (GET /v1/models).", strings.Join(names, ", "), more)
	case len(names) == 1:
		return " The only model is " + names[0] + "."
	}
	return " Known models are " + strings.Join(names, ", ") + "."
}

// shorten bounds a name.
func shorten(name string) string {
	if len(name) > nameShown {
		return strings.ToValidUTF8(name[:nameShown], "") + "…"
	}
	return name
}
