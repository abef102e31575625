// Package apierror holds the faults that callers may see.
//
// An Error has a Reason (the contract's ErrorReason), a message that is safe to show and a
// hidden cause. One switch, in reason.go, maps each reason to a gRPC code, an HTTP status and
// OpenAI's error type. Surfaces render the result of From, which turns every error that is not
// an *Error into "internal error": no address and no text of another library reaches a caller.
// An engine's own answer about the client's request travels as an Error made by Upstream and is
// rendered byte for byte. Errors are values; they may be shared and are never changed.
package apierror
