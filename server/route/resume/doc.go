// Package resume follows one streamed answer so that another replica can continue it.
//
// A Follower takes what an engine sends and returns what the client gets: whole events, without
// the token ids that the router asked for. When the engine dies, Point returns the tokens that the client has
// the text of; after Resume the Follower takes the events of another engine, which continues from them, and
// puts them into the client's stream. What it returned is never withdrawn or returned twice.
//
// A Follower belongs to one goroutine. What it keeps is bounded (see Follower). It does not decide whether
// a request may be resumed (package openai knows its fields), and asks no replica: that is the router's.
package resume
