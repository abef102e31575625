package inproc

import "google.golang.org/grpc/metadata"

// keyOpen marks the header of a stream that is open and may have nothing to say for long.
const keyOpen = "x-kvpilot-stream"

// StreamOpen is the header that a handler sends when its stream has passed every check, so that
// the REST surface can tell its client at once and not with the first message.
func StreamOpen() metadata.MD { return metadata.MD{keyOpen: {"open"}} }

// IsOpen reports whether a header is StreamOpen's.
func IsOpen(md metadata.MD) bool { return len(md[keyOpen]) > 0 }
