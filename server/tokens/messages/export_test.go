package messages

// ErrChunk is the error of Write.
var ErrChunk = errChunk
