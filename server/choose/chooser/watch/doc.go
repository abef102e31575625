// Package watch finds the ranks that have requests and make no progress, and the replicas that are to be left, and withdraws their requests.
package watch
