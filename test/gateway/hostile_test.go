package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kvpilot/kvpilot/server/config"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/callers"
	extprocconfig "github.com/kvpilot/kvpilot/server/edge/extproc"
	"github.com/kvpilot/kvpilot/server/route/quota"
)

var plainDuplex = dialect{request: duplex, response: duplex, piece: 100}

// phase leaves a stream in some state; the picker must notice the gateway's leaving there.
type phase struct {
	name string
	run  func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient)
}

func phases() []phase {
	headers := func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient) {
		send(t, stream, g.first(long()))
	}
	half := func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient) {
		headers(t, g, stream)
		send(t, stream, requestBody(long().body[:20], false))
	}
	named := func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient) *got {
		out, err := g.ask(stream, long())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	answering := func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient) {
		named(t, g, stream)
		send(t, stream, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{
			Headers: headerMap(map[string]string{":status": "200", "content-type": "text/event-stream"}),
		}}})
		receive(t, stream)
		send(t, stream, responseBody([]byte(`data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n"), false))
		receive(t, stream)
	}
	return []phase{
		{"before its first message", func(*testing.T, *gateway, extproc.ExternalProcessor_ProcessClient) {}},
		{"after the headers", headers},
		{"in the middle of the body", half},
		{"after the replica was named", func(t *testing.T, g *gateway, stream extproc.ExternalProcessor_ProcessClient) { named(t, g, stream) }},
		{"in the middle of the answer", answering},
	}
}

func send(t *testing.T, stream extproc.ExternalProcessor_ProcessClient, m *extproc.ProcessingRequest) {
	t.Helper()
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, stream extproc.ExternalProcessor_ProcessClient) *extproc.ProcessingResponse {
	t.Helper()
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A gateway leaves by closing its side of the stream, or by resetting it.
func TestNothingStaysBookedWhereverTheGatewayLeaves(t *testing.T) {
	s := start(t, 2)
	g := dial(t, s.EPP, false, plainDuplex)
	for _, p := range phases() {
		for _, how := range []string{"closes", "resets"} {
			t.Run(p.name+" it "+how, func(t *testing.T) {
				ctx, reset := context.WithCancel(t.Context())
				defer reset()
				stream, err := g.client.Process(ctx)
				if err != nil {
					t.Fatal(err)
				}
				p.run(t, g, stream)
				if how == "resets" {
					reset()
				} else {
					if err := stream.CloseSend(); err != nil {
						t.Fatal(err)
					}
					for err == nil { // the picker ends its side, too
						_, err = stream.Recv()
					}
					if !errors.Is(err, io.EOF) {
						t.Errorf("the stream ended with %v", err)
					}
				}
				settled(t, s)
			})
		}
	}
}

func TestARequestLeavesTheQueueWithItsGateway(t *testing.T) {
	s := start(t, 1, holding)
	free := occupy(t, s, 7)
	g := dial(t, s.EPP, false, plainDuplex)
	for _, how := range []string{"closes", "resets"} {
		ctx, reset := context.WithCancel(t.Context())
		stream, err := g.client.Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, g.first(ask("waiting", false)))
		if err := g.sendPieces(stream, ask("waiting", false)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the request waits", func() bool { return metric(t, s, "kvpilot_admission_requests") == 1 })
		if how == "closes" {
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		} else {
			reset()
		}
		eventually(t, "the request has left the queue", func() bool { return metric(t, s, "kvpilot_admission_requests") == 0 })
		reset()
	}
	free()
	settled(t, s)
}

func TestAQueuedRequestIsSentWhenItsTurnComes(t *testing.T) {
	s := start(t, 1, holding)
	free := occupy(t, s, 7)
	g := dial(t, s.EPP, false, plainDuplex)
	done := make(chan error, 1)
	go func() {
		out, err := g.do(t.Context(), ask("waiting", false))
		if err == nil && out.status != 200 {
			err = errors.New(out.body)
		}
		done <- err
	}()
	eventually(t, "the request waits", func() bool { return metric(t, s, "kvpilot_admission_requests") == 1 })
	free()
	if err := <-done; err != nil {
		t.Error(err)
	}
	settled(t, s)
}

func TestRefusalsAreWordedForTheClient(t *testing.T) {
	s := start(t, 1, holding, func(c *config.Config) { c.Chooser.Queue.MaxWait = 50 * time.Millisecond })
	free := occupy(t, s, 7)
	g := dial(t, s.EPP, false, plainDuplex)
	out, err := g.do(t.Context(), ask("no room", false))
	if err != nil || out.status != 429 || out.header.Get("Retry-After") == "" || out.header.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-ttl-expired" || !json.Valid([]byte(out.body)) {
		t.Errorf("a full fleet: %v, %+v", err, out)
	}
	free()
	settled(t, s)

	for name, c := range map[string]struct {
		question sent
		status   int
	}{
		"no JSON":         {sent{path: "/v1/chat/completions", body: `{"model":`}, 400},
		"a path of bytes": {sent{path: "/v1/\x01", body: `{}`}, 400},
		"a bad target":    {sent{path: "/v1/chat/completions", body: ask("x", false).body, header: map[string]string{"x-llm-d-slo-ttft-ms": "soon"}}, 400},
		"a strange pin":   {sent{path: "/v1/chat/completions", body: ask("x", false).body, header: map[string]string{"x-kvpilot-pin": "nobody"}}, 404},
	} {
		out, err := g.do(t.Context(), c.question)
		if err != nil || !out.local || out.status != c.status || !json.Valid([]byte(out.body)) || out.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %v, %+v", name, err, out)
		}
	}
	settled(t, s)
}

func TestBodiesAreBounded(t *testing.T) {
	s := start(t, 1, func(c *config.Config) { c.EPP.MaxBodyBytes = 1 << 20 })
	huge := sent{path: "/v1/chat/completions", body: strings.Repeat("x", 1<<20+1)}
	for name, d := range map[string]dialect{
		"in pieces": {request: duplex, response: duplex, piece: 30_000}, "as a whole": {request: buffered, response: buffered},
	} {
		g := dial(t, s.EPP, false, d)
		for _, announced := range []bool{true, false} {
			question := huge
			if !announced {
				question.header = map[string]string{"content-length": ""}
			}
			stream, err := g.client.Process(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, g.first(question))
			if d.request == buffered {
				if m := receive(t, stream); m.GetImmediateResponse() == nil {
					_ = stream.Send(requestBody(question.body, true)) // it may be refused before it is read
				} else {
					continue
				}
			} else {
				_ = g.sendPieces(stream, question) // as above
			}
			m := receive(t, stream)
			if local := localAnswer(m); local == nil || local.status != 413 {
				t.Errorf("%s, announced %v: %v", name, announced, m)
			}
		}
	}
	settled(t, s)
}

func TestASlowBodyEndsWithAnError(t *testing.T) {
	s := start(t, 1, func(c *config.Config) { c.Gateway.BodyTimeout = 100 * time.Millisecond })
	g := dial(t, s.EPP, false, plainDuplex)
	stream, err := g.client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, g.first(long()))
	send(t, stream, requestBody(`{"model":`, false))
	if local := localAnswer(receive(t, stream)); local == nil || local.status != 408 {
		t.Errorf("got %+v", local)
	}
	settled(t, s)
}

func TestAStreamMustBeginWithHeaders(t *testing.T) {
	s := start(t, 1)
	g := dial(t, s.EPP, false, plainDuplex)
	for name, m := range map[string]*extproc.ProcessingRequest{"a body": requestBody("x", true), "nothing": {}, "an answer": responseBody(nil, true)} {
		stream, err := g.client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, m)
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := metric(t, s, "kvpilot_epp_requests_total", `result="failed"`); n != 3 {
		t.Errorf("%v streams broke the protocol, want 3", n)
	}
	settled(t, s)
}

// Messages in an order that no gateway sends must not crash the picker, nor leave anything behind.
func TestMessagesOutOfOrder(t *testing.T) {
	s := start(t, 1)
	head := func(code string) *extproc.ProcessingRequest {
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headerMap(map[string]string{":status": code})}}}
	}
	trailers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}}
	for name, list := range map[string][]*extproc.ProcessingRequest{
		"the answer before the body's end": {head("503"), responseBody([]byte("no"), true)},
		"two heads":                        {requestBody(ask("x", true).body, true), head("200"), head("500"), responseBody([]byte("data: {}\n\n"), false), trailers},
		"no number":                        {requestBody(ask("x", true).body, true), head("two hundred"), responseBody(nil, true)},
		"a body without a head":            {requestBody(ask("x", true).body, true), responseBody([]byte("x"), false), responseBody([]byte("x"), true)},
		"headers again":                    {requestBody(ask("x", true).body, true), (&gateway{dialect: plainDuplex}).first(ask("y", false)), trailers},
		"an unknown message":               {{}, requestBody(ask("x", true).body, true), {}},
	} {
		t.Run(name, func(t *testing.T) {
			g := dial(t, s.EPP, false, plainDuplex)
			stream, err := g.client.Process(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			send(t, stream, g.first(ask("x", true)))
			for _, m := range list {
				_ = stream.Send(m) // the picker may have ended the stream
			}
			_ = stream.CloseSend() // as above
			for err == nil {
				_, err = stream.Recv()
			}
			settled(t, s)
		})
	}
}

func TestCallersAndTenantsAreThoseOfProxyMode(t *testing.T) {
	s := start(t, 1, func(c *config.Config) {
		c.API.Keys = []callers.Key{
			{Key: secret.New("client-key-1234567"), Name: "acme"},
			{Key: secret.New("gateway-key-1234567"), Name: "gw", Roles: []string{"gateway", "infer"}},
		}
		c.Tenants = quota.Config{"acme": {RequestsPerSecond: 0.001, RequestBurst: 2}}
	})
	g := dial(t, s.EPP, false, plainDuplex)
	if out, err := g.do(t.Context(), ask("x", false)); err != nil || out.status != 401 {
		t.Errorf("without a key: %v, %+v", err, out)
	}
	question := ask("x", false)
	question.header = map[string]string{"authorization": "Bearer client-key-1234567", "x-kvpilot-session": "s"}
	out, err := g.do(t.Context(), question)
	if err != nil || out.status != 200 {
		t.Fatalf("with a key: %v, %+v", err, out)
	}
	if h := out.request.Header; h.Get("Authorization") != "" || h.Get("X-Kvpilot-Session") != "" {
		t.Errorf("the replica gets %v", h)
	}
	// The gateway's own key lets it name the tenant, whose limit holds whoever asks for it.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer gateway-key-1234567")
	question.header = map[string]string{"x-llm-d-inference-fairness-id": "acme"}
	if out, err := g.do(ctx, question); err != nil || out.status != 200 {
		t.Errorf("for a tenant: %v, %+v", err, out)
	}
	out, err = g.do(ctx, question)
	if err != nil || out.status != 429 || !isSeconds(out.header.Get("Retry-After")) {
		t.Errorf("over the tenant's limit: %v, %+v", err, out)
	}
	settled(t, s)
}

func isSeconds(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n > 0
}

// Without keys the gateway is the only caller: the tenant is its word.
func TestAFairnessIDIsTheTenantWhereNoKeysAreInUse(t *testing.T) {
	s := start(t, 1, func(c *config.Config) {
		c.Tenants = quota.Config{"acme": {RequestsPerSecond: 0.001, RequestBurst: 1}}
	})
	g := dial(t, s.EPP, false, plainDuplex)
	question := ask("x", false)
	question.header = map[string]string{"x-gateway-inference-fairness-id": "acme"}
	var codes []int
	for range 2 {
		out, err := g.do(t.Context(), question)
		if err != nil {
			t.Fatal(err)
		}
		codes = append(codes, out.status)
	}
	question.header = nil
	if out, err := g.do(t.Context(), question); err != nil || out.status != 200 || codes[0] != 200 || codes[1] != 429 {
		t.Errorf("the tenant got %v, another %+v", codes, out)
	}
}

func TestTheGatewayNamesTheModel(t *testing.T) {
	s := start(t, 1)
	for _, d := range []dialect{plainDuplex, {request: buffered, response: buffered}} {
		g := dial(t, s.EPP, false, d)
		question := sent{path: "/v1/chat/completions", body: strings.Replace(ask("x", false).body, `"sim"`, `"any"`, 1), header: map[string]string{"x-llm-d-model-name-rewrite": "sim"}}
		if out, err := g.do(t.Context(), question); err != nil || out.status != 200 || !strings.Contains(out.body, `"model":"sim"`) {
			t.Errorf("%v, %+v", err, out)
		}
	}
	settled(t, s)
}

// What steers an engine's or a sidecar's transfers goes on only from those who may steer.
func TestClientsDoNotSteerSidecars(t *testing.T) {
	s := start(t, 1)
	g := dial(t, s.EPP, false, plainDuplex)
	question := ask("x", false)
	question.header = map[string]string{"x-prefiller-host-port": "10.0.0.1:1", "x-data-parallel-rank": "3", headerEndpoint: "10.0.0.1:1", "x-kvpilot-tenant": "x"}
	out, err := g.do(t.Context(), question)
	if err != nil || out.status != 200 || out.endpoint != endpoint(s.Replicas[0]) {
		t.Fatalf("%v, %+v", err, out)
	}
	for _, name := range []string{"X-Prefiller-Host-Port", "X-Data-Parallel-Rank", "X-Kvpilot-Tenant"} {
		if out.request.Header.Get(name) != "" {
			t.Errorf("the replica gets %s", name)
		}
	}
}

func TestAnswersThatAreNotSeenKeepTheirBooking(t *testing.T) {
	for _, response := range []string{extprocconfig.ResponseSkip, extprocconfig.ResponseHeaders} {
		s := startSlow(t, 1, func(c *config.Config) { c.EPP.Response = response })
		g := dial(t, s.EPP, false, plainDuplex)
		stream, err := g.client.Process(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.ask(stream, long()); err != nil { // for some 40 s, as predicted
			t.Fatal(err)
		}
		if response == extprocconfig.ResponseHeaders {
			send(t, stream, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headerMap(map[string]string{":status": "200"})}}})
			receive(t, stream)
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the picker does not end the stream: %v", response, err)
		}
		eventually(t, "the stream has ended", func() bool { return metric(t, s, "kvpilot_epp_streams") == 0 })
		if n := metric(t, s, "kvpilot_load_reservations"); n != 1 {
			t.Errorf("%s: %v bookings, want one until the predicted end", response, n)
		}
		s.Stop() // which does not wait for that
	}
}

func TestBookingsOfAnswersThatAreNotSeenEndWhenPredicted(t *testing.T) {
	t.Parallel()
	s := start(t, 1, func(c *config.Config) { c.EPP.Response = extprocconfig.ResponseSkip })
	g := dial(t, s.EPP, false, plainDuplex)
	stream, err := g.client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.ask(stream, ask("x", true)); err != nil {
		t.Fatal(err)
	}
	settled(t, s)
}

// What a gateway reports of the answer is what proxy mode would have seen.
func TestFirstTokensAndUsageAreRead(t *testing.T) {
	s := start(t, 1)
	g := dial(t, s.EPP, false, plainDuplex)
	for _, stream := range []bool{true, false} {
		question := ask("usage", stream)
		question.body = strings.Replace(question.body, `"max_tokens"`, `"stream_options":{"include_usage":true},"max_tokens"`, 1)
		if !stream {
			question = ask("usage", false)
		}
		if out, err := g.do(t.Context(), question); err != nil || out.status != 200 {
			t.Fatalf("%v, %+v", err, out)
		}
	}
	settled(t, s)
	if n := metric(t, s, "kvpilot_router_ttft_seconds_count"); n != 1 {
		t.Errorf("%v first tokens were seen, want that of the stream", n)
	}
	if n := metric(t, s, "kvpilot_router_tokens_total", `kind="output"`); n != 10 {
		t.Errorf("%v tokens were counted, want 10", n)
	}
}

// A replica that the gateway cannot reach counts as in proxy mode: it is probed, and gets no further requests.
func TestAReplicaThatTheGatewayCannotReachIsLeft(t *testing.T) {
	s := start(t, 2)
	g := dial(t, s.EPP, false, plainDuplex)
	stream, err := g.client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.ask(stream, ask("x", true)); err != nil {
		t.Fatal(err)
	}
	send(t, stream, &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{
		Headers: headerMap(map[string]string{":status": "503", "server": "envoy", "content-type": "text/plain"}),
	}}})
	receive(t, stream)
	send(t, stream, responseBody([]byte("upstream connect error or disconnect/reset before headers"), true))
	receive(t, stream)
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	settled(t, s)
	if n := metric(t, s, "kvpilot_router_faults_total", `outcome="unreachable"`); n != 1 {
		t.Errorf("%v faults, want one", n)
	}
}
