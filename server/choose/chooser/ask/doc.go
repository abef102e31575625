// Package ask has the words between a chooser and its callers: the Request for a choice, the errors that answer it, and the Observer that
// follows a booked request to its End.
package ask
