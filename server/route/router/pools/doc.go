// Package pools finds the pool of a request in a view of the registry where its body does not name one, words the absence of a model for
// clients, and writes the pools as /v1/models lists them.
//
// It keeps nothing: each function answers from the view that it is given.
package pools
