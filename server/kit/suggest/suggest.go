// Package suggest finds the name that a misspelt one most likely stands for.
package suggest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

const (
	// mostEdits bounds the letters in which a name differs from the name that it stands for.
	mostEdits = 3
	// lettersPerEdit is the length of a name that allows for one more of them; five letters allow for two, which have changed places.
	lettersPerEdit = 3
	// most bounds the names of a suggestion.
	most = 3
	// longest bounds the names that are compared.
	longest = 128
)

// Near returns the known names that differ the least from name, in order, and none when all of them differ too much. Case does not count,
// and "-" is "_".
func Near(name string, known []string) []string {
	if len(name) > longest {
		return nil
	}
	least := min(max((len(name)+1)/lettersPerEdit, 1), mostEdits)
	folded := fold(name)
	var found []string
	for _, k := range known {
		if other := fold(k); len(other) <= len(folded)+least && len(folded) <= len(other)+least {
			switch edits := levenshtein.ComputeDistance(folded, other); {
			case edits < least, edits == least && found == nil:
				least, found = edits, []string{k}
			case edits == least:
				found = append(found, k)
			}
		}
	}
	return ordered(found)
}

// Under returns the known paths that end with name, when they are few: it stands in the wrong place. separator divides paths.
func Under(name, separator string, known []string) []string {
	var found []string
	for _, k := range known {
		if strings.HasSuffix(k, separator+name) {
			found = append(found, k)
		}
	}
	return ordered(found)
}

// Question returns the end of an error's text: "; did you mean a or b?", and nothing without names.
func Question(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}

// ordered returns the names in alphabetical order, without duplicates, and none of more than a few.
func ordered(names []string) []string {
	slices.SortFunc(names, cmp.Compare)
	if names = slices.Compact(names); len(names) > most {
		return nil
	}
	return names
}

func fold(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }
