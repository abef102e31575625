package registry

import "errors"

// The errors that the methods which change the registry may return.
var (
	// ErrUnknownReplica: no replica has this id.
	ErrUnknownReplica = errors.New("no such replica")
	// ErrLastReady: no other ready replica serves a model of this one.
	ErrLastReady = errors.New("it is the last ready replica")
	// ErrTaken: the id belongs to a replica that was not registered but configured or discovered.
	ErrTaken = errors.New("the replica id is configured or discovered, not registered")
	// ErrFull: as many replicas are registered as Config allows.
	ErrFull = errors.New("too many registered replicas")
	// ErrClosed: the registry's Run has ended.
	ErrClosed = errors.New("the registry is closed")
)
