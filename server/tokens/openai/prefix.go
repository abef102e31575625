package openai

import "github.com/kvpilot/kvpilot/server/tokens/rawjson"

// PrefixLegs makes the bodies of the two completions that move the beginning of a prompt from one engine's cache to another's: both are of
// exactly the same ids, and of one token. An engine does not check that a cache belongs to its prompt.
type PrefixLegs struct {
	// Model is its name at the engines, Salt the prompt's cache_salt; empty for none.
	Model, Salt string
	IDs         []uint32
	// Transfer is as in Legs.
	Transfer string
}

// Source is the body for the engine that has the prefix.
func (l *PrefixLegs) Source() []byte {
	return l.body(asSource(l.Transfer))
}

// Target is the body for the engine that gets it, with the parameters that the source returned.
func (l *PrefixLegs) Target(params []byte) []byte { return l.body(params) }

func (l *PrefixLegs) body(transfer []byte) []byte {
	b := make([]byte, 0, len(transfer)+7*len(l.IDs)+len(l.Model)+len(l.Salt)+256)
	b = rawjson.AppendString(append(b, `{"model":`...), l.Model)
	b = rawjson.AppendUint32s(append(b, `,"prompt":`...), l.IDs)
	// An answer that a token of its text ends has no cache to pass on.
	b = append(b, `,"max_tokens":1,"ignore_eos":true,"temperature":0,"stream":false`...)
	if l.Salt != "" {
		b = rawjson.AppendString(append(b, `,"cache_salt":`...), l.Salt)
	}
	b = append(append(b, `,"kv_transfer_params":`...), transfer...)
	return append(b, '}')
}
