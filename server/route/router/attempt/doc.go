// Package attempt makes the attempts of a request. An attempt has a replica chosen, sends it the request, and releases the reservation at its end.
//
// Dispatcher.Open makes an attempt up to the head of the replica's answer, and Dispatcher.End ends it. The parts of a Dispatcher are its exported
// fields: Retries decides whether another replica is tried, Blame finds the party at fault for a failure, Refusals pauses a replica that answers 429
// or 503 and words that for the client, Legs has a prompt computed by another replica, Copier copies beginnings of prompts ahead of requests that wait.
//
// A Dispatcher is safe for concurrent use. An Attempt, a Delivery and Tries belong to the goroutine of the request. What the client gets of an
// answer is the work of package answer.
package attempt
