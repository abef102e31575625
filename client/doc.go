// Package client talks to a kvpilot router over gRPC.
//
// Dial makes a Client. Tokenize and Detokenize use the model's own tokenizer. Choose asks which
// replica should answer and returns a Choice, whose PrefillDone, Progress and Release report
// how the request fares; a Tracker carries these reports of many choices over one stream and
// releases them all when the caller dies. Chat, ChatStream and their siblings have the router
// answer the request itself, bodies passed through byte for byte. Explain and WatchDecisions
// explain why a request was sent where it was, WatchReplicas lists the replicas.
//
// A Client is safe for concurrent use and keeps one connection. Calls that may be repeated
// without harm (tokenizing, lifecycle reports, reads) are retried a few times when the router is
// not reachable; choosing and answering are not, except calls that gRPC knows were never processed.
// Every call ends with its context. Errors are gRPC statuses; Reason names kvpilot's own.
//
// The package imports the generated contract and nothing else of kvpilot; Routing, Inference and
// Replicas give the generated clients for whatever has no helper here.
package client
