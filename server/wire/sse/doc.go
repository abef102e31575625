// Package sse watches the bytes of an engine's response, a stream of server-sent events or one JSON document, for the first
// content, the usage, the finish reason and errors. It decodes no JSON and copies nothing but those.
package sse
