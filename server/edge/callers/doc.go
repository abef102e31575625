// Package callers identifies the sender of a request by an API key, a signed token (JWT) or a client certificate.
//
// Callers holds the credentials that are accepted now. Update replaces them as a whole; Run reads files again that
// change, and key sets of tokens. Identify takes no lock and, for a known key, allocates nothing. A file or a key set
// that cannot be read leaves the one before in force.
package callers
