package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	duplex   = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered = modev3.ProcessingMode_BUFFERED
	none     = modev3.ProcessingMode_NONE

	headerEndpoint = "x-gateway-destination-endpoint"
)

// dialect is how a gateway speaks the protocol.
type dialect struct {
	name              string
	request, response modev3.ProcessingMode_BodySendMode
	// silent gateways do not report their modes.
	silent bool
	// single gateways read the endpoint as one socket address.
	single bool
	// reportsServed gateways say which endpoint served.
	reportsServed bool
	// subset is the form of the endpoints that it allows: "list", "string" or none.
	subset string
	// fromMetadata gateways read the endpoint from the dynamic metadata.
	fromMetadata bool
	piece        int
}

// dialects are those of the gateways that follow the Gateway API Inference Extension.
func dialects() []dialect {
	return []dialect{
		{name: "agentgateway", request: duplex, response: duplex, single: true, reportsServed: true, piece: 7},
		{name: "gke", request: duplex, response: duplex, reportsServed: true, subset: "list", piece: 60000},
		{name: "istio", request: duplex, response: duplex, subset: "string", fromMetadata: true, piece: 1000},
		{name: "envoy-ai-gateway buffered", request: buffered, response: buffered, fromMetadata: true},
		{name: "envoy-ai-gateway duplex", request: duplex, response: duplex, piece: 500},
		{name: "kgateway", request: duplex, response: duplex, silent: true, piece: 16000},
		{name: "without the answer's body", request: duplex, response: none, piece: 100},
	}
}

// gateway asks the picker at an address.
type gateway struct {
	t      testing.TB
	client extproc.ExternalProcessorClient
	dialect
}

// dial opens the connection of a gateway.
func dial(t testing.TB, address string, secure bool, d dialect) *gateway {
	t.Helper()
	creds := insecure.NewCredentials()
	if secure {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &gateway{t, extproc.NewExternalProcessorClient(conn), d}
}

// sent is a request of a gateway's client.
type sent struct {
	path   string
	header map[string]string
	body   string
	method string
	// allowed are the endpoints of the subset.
	allowed []string
	// elsewhere are endpoints, of which the gateway sends to one that it was not named.
	elsewhere []string
	trailers  bool
}

// got is what the client gets.
type got struct {
	status   int
	header   http.Header
	body     string
	endpoint string
	local    bool // the picker answered
	request  *http.Request
}

// headerMap has values raw and names in lower case.
func headerMap(pairs map[string]string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for name, value := range pairs {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(value)})
	}
	return m
}

func (s sent) headers() map[string]string {
	method := s.method
	if method == "" {
		method = http.MethodPost
	}
	all := map[string]string{
		":method": method, ":path": s.path, ":scheme": "http", ":authority": "api.example.com", "content-type": "application/json",
		"x-forwarded-for": "192.0.2.7",
	}
	if s.body != "" {
		all["content-length"] = strconv.Itoa(len(s.body))
	}
	for name, value := range s.header {
		all[name] = value
	}
	return all
}

func (g *gateway) first(s sent) *extproc.ProcessingRequest {
	m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerMap(s.headers()), EndOfStream: s.body == "" && !s.trailers,
	}}}
	if !g.silent {
		m.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: g.request, ResponseBodyMode: g.response}
	}
	if s.allowed != nil {
		var value *structpb.Value
		switch g.subset {
		case "list":
			list := &structpb.ListValue{}
			for _, one := range s.allowed {
				list.Values = append(list.Values, structpb.NewStringValue(one))
			}
			value = structpb.NewListValue(list)
		default:
			value = structpb.NewStringValue(strings.Join(s.allowed, ", "))
		}
		m.MetadataContext = filterMetadata("envoy.lb.subset_hint", headerEndpoint+"-subset", value)
	}
	return m
}

func filterMetadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: value}}}}
}

func requestBody(piece string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte(piece), EndOfStream: end}}}
}

// mistake is the picker's.
func mistake(format string, args ...any) error { return fmt.Errorf("protocol: "+format, args...) }

// do sends one request through the picker and, where it names an endpoint, to that.
func (g *gateway) do(ctx context.Context, s sent) (*got, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := g.client.Process(ctx)
	if err != nil {
		return nil, err
	}
	out, err := g.ask(stream, s)
	if err != nil || out.local {
		return out, err
	}
	resp, err := http.DefaultClient.Do(out.request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := g.answer(stream, s, resp, out); err != nil {
		return nil, err
	}
	return out, stream.CloseSend()
}

// ask sends the request to the picker and makes the one for the replica.
func (g *gateway) ask(stream extproc.ExternalProcessor_ProcessClient, s sent) (*got, error) {
	if err := stream.Send(g.first(s)); err != nil {
		return nil, err
	}
	headers, body := s.headers(), s.body
	if g.request == buffered && (s.body != "" || s.trailers) {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if local := localAnswer(m); local != nil {
			return local, nil
		}
		if m.GetRequestHeaders() == nil {
			return nil, mistake("%T answers buffered headers", m.GetResponse())
		}
		if err := stream.Send(requestBody(s.body, true)); err != nil {
			return nil, err
		}
	}
	if g.request == duplex && (s.body != "" || s.trailers) {
		if err := g.sendPieces(stream, s); err != nil {
			return nil, err
		}
	}
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if local := localAnswer(m); local != nil {
		return local, nil
	}
	change := m.GetRequestHeaders().GetResponse()
	if g.request == buffered && s.body != "" {
		change = m.GetRequestBody().GetResponse()
		if changed, ok := change.GetBodyMutation().GetMutation().(*extproc.BodyMutation_Body); ok {
			body = string(changed.Body)
		}
	}
	if change == nil || !change.GetClearRouteCache() {
		return nil, mistake("%T does not name an endpoint with clear_route_cache", m.GetResponse())
	}
	if g.request == duplex && (s.body != "" || s.trailers) {
		if body, err = g.bodyBack(stream, s); err != nil {
			return nil, err
		}
	}
	apply(headers, change.GetHeaderMutation())
	out, err := g.outgoing(stream.Context(), headers, body)
	if err != nil {
		return nil, err
	}
	if from := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[headerEndpoint].GetStringValue(); from != headers[headerEndpoint] {
		return nil, mistake("the metadata names %q, the header %q", from, headers[headerEndpoint])
	}
	return out, g.direct(out, s)
}

// sendPieces sends the body; the last piece twice, as some versions of Envoy do. The picker may have answered before.
func (g *gateway) sendPieces(stream extproc.ExternalProcessor_ProcessClient, s sent) error {
	if err := g.sendAll(stream, s); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (g *gateway) sendAll(stream extproc.ExternalProcessor_ProcessClient, s sent) error {
	rest := s.body
	for size := max(1, g.piece); len(rest) > size; rest = rest[size:] {
		if err := stream.Send(requestBody(rest[:size], false)); err != nil {
			return err
		}
	}
	if err := stream.Send(requestBody(rest, !s.trailers)); err != nil {
		return err
	}
	if s.trailers {
		return stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}})
	}
	return stream.Send(requestBody(rest, true))
}

// bodyBack reads the body that the picker sends back.
func (g *gateway) bodyBack(stream extproc.ExternalProcessor_ProcessClient, s sent) (string, error) {
	var back bytes.Buffer
	for {
		m, err := stream.Recv()
		if err != nil {
			return "", err
		}
		if s.trailers && m.GetRequestTrailers() != nil {
			return back.String(), nil
		}
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			return "", mistake("%T instead of a streamed piece", m.GetResponse())
		}
		if len(piece.GetBody()) > 62000 {
			return "", mistake("a piece of %d bytes", len(piece.GetBody()))
		}
		back.Write(piece.GetBody())
		if piece.GetEndOfStream() {
			if s.trailers {
				return "", mistake("the body ends before its trailers")
			}
			return back.String(), nil
		}
	}
}

// apply changes headers as Envoy does.
func apply(headers map[string]string, m *extproc.HeaderMutation) {
	for _, name := range m.GetRemoveHeaders() {
		delete(headers, name)
	}
	for _, h := range m.GetSetHeaders() {
		headers[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
}

func localAnswer(m *extproc.ProcessingResponse) *got {
	now := m.GetImmediateResponse()
	if now == nil {
		return nil
	}
	out := &got{status: int(now.GetStatus().GetCode()), header: http.Header{}, body: string(now.GetBody()), local: true}
	for _, h := range now.GetHeaders().GetSetHeaders() {
		out.header.Add(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	return out
}

// outgoing makes the request that goes to the replica.
func (g *gateway) outgoing(ctx context.Context, headers map[string]string, body string) (*got, error) {
	if n, ok := headers["content-length"]; ok && n != strconv.Itoa(len(body)) {
		return nil, mistake("content-length is %s, the body has %d bytes", n, len(body))
	}
	list := strings.Split(headers[headerEndpoint], ",")
	for _, one := range list {
		if _, err := netip.ParseAddrPort(one); err != nil {
			return nil, mistake("%q is no socket address: %v", one, err)
		}
	}
	if g.single && len(list) != 1 {
		return nil, mistake("EPP returned invalid address %q", headers[headerEndpoint])
	}
	req, err := http.NewRequestWithContext(ctx, headers[":method"], "http://"+list[0]+headers[":path"], strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		if !strings.HasPrefix(name, ":") && name != "content-length" {
			req.Header.Set(name, value)
		}
	}
	return &got{endpoint: list[0], request: req}, nil
}

// direct sends the request elsewhere where the test says so.
func (g *gateway) direct(out *got, s sent) error {
	for _, other := range s.elsewhere {
		if other != out.endpoint {
			out.endpoint, out.request.URL.Host = other, other
			break
		}
	}
	return nil
}

// answer passes the replica's answer through the picker.
func (g *gateway) answer(stream extproc.ExternalProcessor_ProcessClient, s sent, resp *http.Response, out *got) error {
	head := map[string]string{":status": strconv.Itoa(resp.StatusCode)}
	for name := range resp.Header {
		head[name] = resp.Header.Get(name)
	}
	m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headerMap(head)}}}
	if g.reportsServed {
		m.MetadataContext = filterMetadata("envoy.lb", headerEndpoint+"-served", structpb.NewStringValue(out.endpoint))
	}
	if err := stream.Send(m); err != nil {
		return err
	}
	back, err := stream.Recv()
	if err != nil {
		return err
	}
	if back.GetResponseHeaders() == nil {
		return mistake("%T answers response headers", back.GetResponse())
	}
	out.status, out.header = resp.StatusCode, resp.Header.Clone()
	for _, h := range back.GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		out.header.Set(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	if g.response == none {
		all, err := io.ReadAll(resp.Body)
		out.body = string(all)
		return err
	}
	return g.answerBody(stream, resp, out)
}

func responseBody(piece []byte, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: piece, EndOfStream: end}}}
}

func (g *gateway) answerBody(stream extproc.ExternalProcessor_ProcessClient, resp *http.Response, out *got) error {
	buf := make([]byte, 32<<10)
	for end := false; !end; {
		n, err := resp.Body.Read(buf)
		if g.response == buffered {
			var rest []byte
			rest, err = io.ReadAll(resp.Body)
			buf, n = append(buf[:n:n], rest...), n+len(rest)
			if err == nil {
				err = io.EOF
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		end = err != nil
		if err := stream.Send(responseBody(bytes.Clone(buf[:n]), end)); err != nil {
			return err
		}
		back, err := stream.Recv()
		if err != nil {
			return err
		}
		c := back.GetResponseBody()
		switch {
		case c == nil:
			return mistake("%T answers a response body", back.GetResponse())
		case g.response == buffered:
			out.body += string(buf[:n])
			continue
		case c.GetResponse().GetBodyMutation().GetStreamedResponse() == nil && n > 0:
			return mistake("a piece of the answer is not sent back")
		}
		out.body += string(c.GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	return nil
}
