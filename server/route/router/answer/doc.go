// Package answer gives a client the answer to its request, from one attempt or from several.
//
// An answer is read from a source. The lowest one is the reply of one replica; around it, a stream that another replica can continue is a source
// that does so when its replica fails or is left, and an answer in one piece that an engine streams is a source around that. Each has its own state.
// Try makes one attempt and delivers its answer, TakeOver continues a stream that another router has begun, Give delivers an answer without a token
// where no replica gave a better one.
//
// Answers are safe for concurrent use. The bytes of a replica reach the client unchanged and unbuffered, but for an object in one piece, which is
// kept until it has come whole.
package answer
