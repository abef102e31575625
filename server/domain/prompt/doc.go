// Package prompt holds the word for a client's input to an engine: the part of a
// request body that decides its token ids, still in the client's own JSON.
//
// Package openai reads a Prompt from a body, package tokenizer turns it into token ids. All
// byte slices point into the request body; they are read-only and live as long as it does.
package prompt
