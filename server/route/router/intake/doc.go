// Package intake makes a Request of a call: the value that all later steps of routing read.
//
// Prepare holds the tenant to its limits, reads the body, gives it the tenant's salt, puts it on the side of a split, finds the replicas that can
// serve it, gets the prompt's token ids, and books the tokens. Ask does this for a Question, Anywhere for a call whose body says nothing about its
// place, and Socket for a WebSocket.
//
// An Intake is safe for concurrent use. A Request belongs to one goroutine. The caller MUST settle the grant of each Request, and release its
// encoding, however it ends. Intake chooses no replica, and sends nothing but questions to tokenizers and about stored responses.
package intake
