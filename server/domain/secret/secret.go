// Package secret holds strings that must not be shown: they print as stars everywhere.
package secret

import "log/slog"

// String is a secret. Its zero value is the empty secret. It prints, logs and marshals as stars;
// Reveal gives the text.
type String struct{ text string }

const stars = "******"

// New wraps text.
func New(text string) String { return String{text: text} }

// Reveal returns the text. Call it only where the secret leaves for its owner.
func (s String) Reveal() string { return s.text }

// IsEmpty reports whether there is no secret.
func (s String) IsEmpty() bool { return s.text == "" }

// String implements fmt.Stringer and hides the text.
func (s String) String() string {
	if s.text == "" {
		return ""
	}
	return stars
}

// GoString hides the text in %#v.
func (s String) GoString() string { return s.String() }

// LogValue hides the text in logs.
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text in JSON and YAML.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text as it is.
func (s *String) UnmarshalText(b []byte) error {
	s.text = string(b)
	return nil
}
