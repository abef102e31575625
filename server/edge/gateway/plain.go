package gateway

import (
	"regexp"
	"strings"
)

// The generated code and protojson describe a wrong value in the words of the functions that read it.
var (
	wrongVariable = regexp.MustCompile(`^type mismatch, parameter: ([\w.]+), error: (?s:(.*))$`)
	wrongQuery    = regexp.MustCompile(`^parsing (?:field|list|map key|map value) "([\w.]+)": (?s:(.*))$`)
	wrongPlace    = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): (?s:(.*))$`)

	wrongNumber   = regexp.MustCompile(`^strconv\.Parse(Uint|Int|Bool|Float): parsing (".*"): (?:invalid syntax|(value out of range))$`)
	wrongTime     = regexp.MustCompile(`^parsing time (".*?")`)
	wrongDuration = regexp.MustCompile(`^time: (?:invalid duration|unknown unit .* in duration|missing unit in duration) (".*")$`)
	wrongName     = regexp.MustCompile(`^(".*") is not a valid value$`)
)

// plain puts the text of a library about a wrong value into words for callers, and names the field; empty when there is none.
func plain(text string) (field, message string) {
	for _, form := range []*regexp.Regexp{wrongVariable, wrongQuery} {
		if m := form.FindStringSubmatch(text); m != nil {
			return m[1], fieldPrefix + m[1] + `" ` + plainValue(m[2])
		}
	}
	if m := wrongPlace.FindStringSubmatch(text); m != nil {
		return "", "the JSON cannot be read at line " + m[1] + ", column " + m[2] + ": " + m[3]
	}
	field, _ = fieldOf(text)
	return field, text
}

// plainValue says what a value should be.
func plainValue(text string) string {
	if m := wrongNumber.FindStringSubmatch(text); m != nil {
		what := map[string]string{"Uint": "an integer of at least 0", "Int": "an integer", "Bool": "true or false", "Float": "a number"}[m[1]]
		if m[3] != "" {
			return "is out of range: " + m[2]
		}
		return "must be " + what + ", not " + m[2]
	}
	for form, what := range map[*regexp.Regexp]string{
		wrongTime: `a time, as in "2030-01-31T12:00:00Z"`, wrongDuration: `a duration in seconds, as in "90s"`, wrongName: "one of its named values",
	} {
		if m := form.FindStringSubmatch(text); m != nil {
			return "must be " + what + ", not " + m[1]
		}
	}
	if strings.Contains(text, "base64") {
		return "must be a string in base64"
	}
	return "cannot be read: " + text
}

const fieldPrefix = `the field "`

// fieldOf finds the field in the text of a mistake.
func fieldOf(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, fieldPrefix)
	if !ok {
		return "", false
	}
	field, _, ok := strings.Cut(rest, `"`)
	return field, ok
}

// clip bounds text that came from a client.
func clip(text string) string {
	const longest = 300
	if len(text) > longest {
		return text[:longest] + "…"
	}
	return text
}
