// Package caller has the words for the sender of a request: Caller and its Roles.
package caller
