// Package retry holds the inputs of a retry's decision: Verdict, the meaning of one attempt's end, Finding, its cause, After, the pause
// that a replica asks for, and Budget, which bounds retries to a share of the requests. The loop over replicas is package router's.
package retry
