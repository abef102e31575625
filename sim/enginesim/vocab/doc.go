// Package vocab is the simulated replica's tokenizer and chat template.
//
// The vocabulary is computed, not trained: single bytes, pairs of printable ASCII characters,
// triples of lower-case letters and spaces, and the special tokens of a ChatML template. Encode
// splits text into words first, so that text made by Decode from generated words encodes to the
// same ids again: the property by which a conversation's next turn hits the cache. About three
// characters make a token. Different texts always have different ids, and Decode gives the text
// back byte for byte.
//
// All functions are pure and safe to call at once.
package vocab
