// Package vllmtest encodes KV event batches as vLLM's versions do, for the tests of the decoder
// and of the feeds. It is checked against vLLM's own bytes where these are at hand, and is
// as loose as the decoder must be: any value may stand in any field.
package vllmtest
