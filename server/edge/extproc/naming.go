package extproc

import (
	"net/http"
	"strconv"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// naming is the answer to a gateway's question: the replicas' addresses, and what else changes in the request's headers.
type naming struct {
	set       http.Header
	remove    []string
	addresses string
}

// change has the gateway change the headers and choose the replica by them.
func (n naming) change() *extproc.CommonResponse {
	return &extproc.CommonResponse{HeaderMutation: mutation(n.set, n.remove), ClearRouteCache: true}
}

// sendNaming sends the message that names the replicas.
func (x *exchange) sendNaming(m *reply, addresses string) error {
	m.DynamicMetadata = endpointMetadata(addresses)
	return x.send(m)
}

// answerHead names the replicas without a body.
func (x *exchange) answerHead(n naming) error {
	return x.sendNaming(requestHeaders(n.change()), n.addresses)
}

// answerBuffered names the replicas in the answer to the whole body.
func (x *exchange) answerBuffered(n naming) error {
	data, changed := x.handoff.Body()
	if changed {
		n.set.Set("Content-Length", strconv.Itoa(len(data)))
	}
	c := n.change()
	if changed {
		c.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: data}}
	}
	if x.body.trailers && x.body.data == nil { // the body was empty: there is no message to answer but the trailers'
		return x.send(requestTrailers())
	}
	if err := x.sendNaming(requestBody(c), n.addresses); err != nil || !x.body.trailers {
		return err
	}
	return x.send(requestTrailers())
}

// answerDuplex names the replicas in the answer to the headers, and sends the whole body back.
func (x *exchange) answerDuplex(n naming) error {
	data, changed := x.handoff.Body()
	if changed {
		n.set.Set("Content-Length", strconv.Itoa(len(data)))
	}
	if err := x.sendNaming(requestHeaders(n.change()), n.addresses); err != nil {
		return err
	}
	err := pieces(data, int(x.server.config.ChunkBytes), !x.body.trailers, func(piece []byte, end bool) error {
		return x.send(requestBody(streamed(piece, end)))
	})
	if err != nil || !x.body.trailers {
		return err
	}
	return x.send(requestTrailers())
}
