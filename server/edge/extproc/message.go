package extproc

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
)

type (
	question = extproc.ProcessingRequest
	reply    = extproc.ProcessingResponse
	mode     = modev3.ProcessingMode_BodySendMode
)

// modes are how the gateway sends the two bodies.
type modes struct{ request, response mode }

// modesOf reads them. A gateway that reports none is taken for one that follows the Gateway API Inference Extension.
func modesOf(c *extproc.ProtocolConfiguration) modes {
	if c == nil {
		return modes{modev3.ProcessingMode_FULL_DUPLEX_STREAMED, modev3.ProcessingMode_FULL_DUPLEX_STREAMED}
	}
	return modes{c.GetRequestBodyMode(), c.GetResponseBodyMode()}
}

// isDuplex reports whether each piece of a body must be sent back.
func isDuplex(m mode) bool { return m == modev3.ProcessingMode_FULL_DUPLEX_STREAMED }

// isBuffered reports whether the body comes as one message after the headers were answered.
func isBuffered(m mode) bool {
	return m == modev3.ProcessingMode_BUFFERED || m == modev3.ProcessingMode_BUFFERED_PARTIAL
}

// fields are the headers of a message. Pseudo-headers keep their names, others get their canonical form.
type fields struct {
	pseudo map[string]string
	header http.Header
}

func fieldsOf(m *corev3.HeaderMap) fields {
	f := fields{map[string]string{}, make(http.Header, len(m.GetHeaders()))}
	for _, h := range m.GetHeaders() {
		value := string(h.GetRawValue())
		if value == "" {
			value = h.GetValue()
		}
		if strings.HasPrefix(h.GetKey(), ":") {
			f.pseudo[h.GetKey()] = value
			continue
		}
		f.header.Add(h.GetKey(), value)
	}
	return f
}

// status is the status of a response's headers; 0 when it is no number.
func (f fields) status() int {
	n, err := strconv.Atoi(f.pseudo[":status"])
	if err != nil {
		return 0
	}
	return n
}

// mutation changes headers: each of set is written in place of those of its name.
func mutation(set http.Header, remove []string) *extproc.HeaderMutation {
	if len(set) == 0 && len(remove) == 0 {
		return nil
	}
	m := &extproc.HeaderMutation{RemoveHeaders: remove}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for i, value := range set[name] {
			action := corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
			if i > 0 {
				action = corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
			}
			m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(value)}, AppendAction: action,
			})
		}
	}
	return m
}

// endpointMetadata names the replica for gateways that read it from the dynamic metadata.
func endpointMetadata(addresses string) *structpb.Struct {
	lb := &structpb.Struct{Fields: map[string]*structpb.Value{keyEndpoint: structpb.NewStringValue(addresses)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{namespaceLB: structpb.NewStructValue(lb)}}
}

func requestHeaders(c *extproc.CommonResponse) *reply {
	return &reply{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: c}}}
}

func responseHeaders(c *extproc.CommonResponse) *reply {
	return &reply{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: c}}}
}

func requestBody(c *extproc.CommonResponse) *reply {
	return &reply{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: c}}}
}

func responseBody(c *extproc.CommonResponse) *reply {
	return &reply{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{Response: c}}}
}

func requestTrailers() *reply {
	return &reply{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}}
}

func responseTrailers() *reply {
	return &reply{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}}
}

// streamed is a piece of a body that goes back to the gateway.
func streamed(piece []byte, end bool) *extproc.CommonResponse {
	return &extproc.CommonResponse{BodyMutation: &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{
		StreamedResponse: &extproc.StreamedBodyResponse{Body: piece, EndOfStream: end},
	}}}
}

// pieces calls send with each piece of a body, the last one with end. An empty body has one piece if end is set.
func pieces(body []byte, size int, end bool, send func(piece []byte, end bool) error) error {
	for len(body) > size {
		if err := send(body[:size], false); err != nil {
			return err
		}
		body = body[size:]
	}
	if len(body) == 0 && !end {
		return nil
	}
	return send(body, end)
}

// refusal answers the gateway's client with an error, in the form of the path that it asked for.
func refusal(e *apierror.Error, path, requestID string) *reply {
	contentType, body := e.Body(httpcall.DialectOf(path))
	set := http.Header{}
	httpcall.SetErrorHeaders(set, e)
	set.Set("Content-Type", contentType)
	if requestID != "" {
		set.Set(httpcall.HeaderRequestID, requestID)
	}
	if reason := droppedFor(e); reason != "" {
		set.Set(headerDropped, reason)
	}
	return &reply{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(e.HTTPStatus())}, Headers: mutation(set, nil), Body: body,
		Details: "kvpilot_" + strings.ToLower(apierror.Name(e.Reason)),
	}}}
}
