// Package http1 is HTTP/1.1 in bytes: it parses the head of a response and takes the framing off its body, more strictly
// than net/http does. It holds no connection and reads nothing: the client is package upstream's.
package http1
