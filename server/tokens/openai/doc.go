// Package openai reads the fields that routing needs from a request body in OpenAI's or Anthropic's
// format, and edits such bodies by splicing bytes.
//
// Read makes one pass over the body without unmarshalling it: model, stream, the prompt in
// the client's own JSON, limits, session, salt, priority. It refuses only bodies that it cannot read
// (no JSON, no object, a model that is no string, too deep), with the position; every
// other fault is the engine's to name, so that clients see the engine's own answers. Values
// mean the same as to vLLM's front end: the last of two equal keys wins, NaN is a number,
// null is absent.
//
// A Request points into the body it was read from: the body must not change afterwards.
// Requests are plain values, safe to read from several goroutines. Edit returns a new body
// in which every byte that was not edited is as it was.
package openai
