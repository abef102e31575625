// Package extproc is the endpoint picker of gateways: Envoy's external processing protocol (envoy.service.ext_proc.v3), in the dialects of
// the Gateway API Inference Extension's gateways. A gateway opens one stream per HTTP request, sends the request's headers and body,
// and learns the replica's address; then it reports the answer as it comes.
//
// Server.Process serves one stream: an exchange. The exchange reads the request, has the router choose and book (router.HandOff), answers with
// the address, and passes the answer's pieces to the Handoff, which releases the booking at the answer's end, or when the stream ends
// before that: the booking lives as long as the stream.
//
//   - exchange.go follows one stream, request.go reads its request, answer.go its answer;
//   - message.go makes the protocol's messages;
//   - subset.go reads the endpoints that a gateway allows, endpoint.go names replicas by address;
//   - dropped.go words refusals as gateways log them;
//   - parting.go keeps bookings of answers that are not seen, until their predicted end.
package extproc
