package holdqueue

// The reasons of a rejection, which other packages know by the names of Cause.
var (
	ErrFull     = errFull
	ErrBytes    = errBytes
	ErrDeadline = errDeadline
	ErrShare    = errShare
)
