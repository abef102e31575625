// Package rawjson walks JSON text without building values from it: members of an object, elements of a list, lists
// of token ids, strings.
//
// A body of 8 MB or an answer of 60,000 token ids must not pass through reflection: everything here looks at each
// byte once and returns slices of the input. A Scanner reads text of unknown origin: it accepts the same text as Python's json
// (NaN is a number, encoded surrogates pass), says what is wrong and where, and keeps the beginning of text that ends early.
// Members, Elements and Member are for text that was read before, or of a replica: they check
// brackets, separators and words, but no bytes of strings. Nothing nests deeper than 256 containers or reads past
// the end. Functions are pure; a Scanner belongs to one goroutine.
package rawjson
