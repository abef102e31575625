// Package rawjson walks JSON text without building values from it: members of an object,
// elements of a list, lists of token ids, strings.
//
// An answer of 60,000 token ids or a body of 300 kB must not pass through reflection, so the
// functions here look at each byte once and return slices of the input. They check what they
// walk over (brackets, strings, separators) and never read past the end; they are not a
// validator for numbers and escapes. All are pure and safe for concurrent use.
package rawjson
