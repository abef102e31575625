package grpcapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/internal/reports"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/load"
	"github.com/kvpilot/kvpilot/server/choose/programs"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/domain/secret"
	"github.com/kvpilot/kvpilot/server/edge/grpcapi"
	"github.com/kvpilot/kvpilot/server/edge/guard"
	"github.com/kvpilot/kvpilot/server/edge/httpcall"
	"github.com/kvpilot/kvpilot/server/fleet/enginestats"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
	"github.com/kvpilot/kvpilot/server/observe/decisionlog"
	"github.com/kvpilot/kvpilot/server/observe/history"
	"github.com/kvpilot/kvpilot/server/route/router"
	"github.com/kvpilot/kvpilot/server/route/router/direct"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer"
	"github.com/kvpilot/kvpilot/server/wire/breaker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRouter remembers what it was asked last and answers as the test says. A call may end at its client before it ends here.
type fakeRouter struct {
	mu        sync.Mutex
	serve     func(context.Context, *intake.Call, intake.Sink) error
	choose    func(*intake.Question) (*router.Answer, error)
	call      *intake.Call
	storedID  string
	questions []*intake.Question
	claimed   string
}

func (f *fakeRouter) remember(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

func (f *fakeRouter) Serve(ctx context.Context, c *intake.Call, to intake.Sink) error {
	f.remember(func() { f.call = c })
	return f.serve(ctx, c, to)
}

func (f *fakeRouter) Adapter(ctx context.Context, c *intake.Call, to intake.Sink) error {
	return f.Serve(ctx, c, to)
}

func (f *fakeRouter) Realtime(_ context.Context, c *intake.Call, model string, up direct.Upgrade) error {
	f.remember(func() { f.call = c })
	_, err := up.Switch(http.Header{"X-Model": {model}})
	return err
}

func (f *fakeRouter) Stored(ctx context.Context, c *intake.Call, id string, to intake.Sink) error {
	f.remember(func() { f.call, f.storedID = c, id })
	return f.serve(ctx, c, to)
}

func (f *fakeRouter) Models() ([]byte, error)         { return []byte(`{"data":[]}`), nil }
func (f *fakeRouter) Model(id string) ([]byte, error) { return []byte(`{"id":"` + id + `"}`), nil }

func (f *fakeRouter) Choose(_ context.Context, q *intake.Question) (*router.Answer, error) {
	f.remember(func() { f.questions = append(f.questions, q) })
	return f.choose(q)
}

func (f *fakeRouter) Claimed(_, name string) bool { return f.claimed == name }

func (f *fakeRouter) Encode(ctx context.Context, q *intake.Question) (*router.Answer, error) {
	return f.Choose(ctx, q)
}

// fakeLife answers every report alike and remembers how reservations ended.
type fakeLife struct {
	outcome  load.Outcome
	finished map[string]chooser.Result
	reports  []string
}

func (f *fakeLife) PrefillCompleted(key load.Key) load.Outcome {
	f.reports = append(f.reports, "prefill "+key.ID)
	return f.outcome
}

func (f *fakeLife) ReportProgress(key load.Key, _ int) load.Outcome {
	f.reports = append(f.reports, "progress "+key.ID)
	return f.outcome
}

func (f *fakeLife) Renew(key load.Key) load.Outcome {
	f.reports = append(f.reports, "renew "+key.ID)
	return f.outcome
}

func (f *fakeLife) Finish(key load.Key, r chooser.Result) load.Outcome {
	if f.finished == nil {
		f.finished = map[string]chooser.Result{}
	}
	f.finished[key.ID] = r
	return f.outcome
}

// idle is a ready router that does nothing and whose settings stay.
type idle struct{}

func (idle) Config() chooser.Config { return chooser.DefaultConfig() }
func (idle) Rates() []chooser.Rate  { return nil }
func (idle) Programs(func(string) (programs.Filter, bool), int) []chooser.ModelPrograms {
	return nil
}
func (idle) Waiting() int               { return 0 }
func (idle) Ready() error               { return nil }
func (idle) Settings() grpcapi.Settings { return nil }

// silent are replicas that report nothing.
type silent struct{}

func (silent) Stats(replica.Slot) (enginestats.Stats, bool) { return enginestats.Stats{}, false }
func (silent) State(replica.ID) breaker.State               { return breaker.Closed }

// empty is an index without feeds.
type empty struct{}

func (empty) Stats() kvindex.Stats                 { return kvindex.Stats{} }
func (empty) State(replica.Slot) kvblock.FeedState { return kvblock.FeedNone }
func (empty) Statuses() []kvevents.Status          { return nil }

type rig struct {
	api       *grpcapi.API
	router    *fakeRouter
	life      *fakeLife
	decisions *decisionlog.Log
	history   *history.History
	// socket is a real gRPC connection, hop the REST surface's way in.
	socket grpc.ClientConnInterface
	hop    grpc.ClientConnInterface
}

func newRig(t testing.TB, c grpcapi.Config, with ...func(*grpcapi.Params)) *rig {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{router: &fakeRouter{}, life: &fakeLife{}, history: history.New()}
	book := load.New(load.DefaultConfig(), load.Params{})
	fleet := registry.New(registry.DefaultConfig(), registry.Params{})
	r.decisions = decisionlog.New(decisionlog.DefaultConfig(), decisionlog.Params{})
	params := grpcapi.Params{
		Router: r.router, Lifecycle: r.life, Chooser: idle{}, Settings: idle{}, Health: idle{},
		Ranks:  grpcapi.Ranks{Registry: fleet, Book: book, Engines: silent{}, Index: empty{}, Feeds: empty{}, Breakers: silent{}},
		Tokens: tokenizer.New(tokenizer.DefaultConfig(), tokenizer.Params{}), Records: grpcapi.Records{Decisions: r.decisions, History: r.history, Traces: &history.Traces{}}, Forward: true,
	}
	for _, change := range with {
		change(&params)
	}
	api, err := grpcapi.New(c, params)
	must(err)
	r.api = api
	protect := guard.New(guard.Limits{Message: 4 << 20, Streams: 1000, HeaderBytes: 1 << 20, Handshake: time.Minute, Idle: time.Minute}, guard.Params{
		Ledger: ledger.New(ledger.Config{Bytes: 1 << 30, Places: 1 << 30}, nil), Senders: api,
	})
	server := grpc.NewServer(append(protect.Options(), grpc.UnaryInterceptor(api.Unary), grpc.StreamInterceptor(api.Stream))...)
	api.Register(protect.Registrar(server))
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	must(err)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	r.socket = conn
	hop := restHop{ClientConnInterface: conn, unary: api.Unary, methods: map[string]grpc.MethodHandler{}, impls: map[string]any{}}
	api.Register(hop)
	r.hop = hop
	return r
}

// restHop makes unary calls as the REST surface does: with the context of an HTTP request, and an error that passes as it is.
type restHop struct {
	grpc.ClientConnInterface // for streams
	unary                    grpc.UnaryServerInterceptor
	methods                  map[string]grpc.MethodHandler
	impls                    map[string]any
}

// RegisterService implements grpc.ServiceRegistrar.
func (h restHop) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		h.methods[name], h.impls[name] = m.Handler, impl
	}
}

// Invoke implements grpc.ClientConnInterface.
func (h restHop) Invoke(ctx context.Context, name string, in, out any, _ ...grpc.CallOption) error {
	got, err := h.methods[name](h.impls[name], ctx, func(m any) error {
		proto.Merge(m.(proto.Message), in.(proto.Message))
		return nil
	}, h.unary)
	if err == nil {
		proto.Merge(out.(proto.Message), got.(proto.Message))
	}
	return err
}

// recvAll reads a raw answer to its end.
func recvAll(stream grpc.ServerStreamingClient[httpbody.HttpBody]) (pieces []string, contentType string, err error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return pieces, contentType, nil
		}
		if err != nil {
			return pieces, contentType, err
		}
		if m.GetContentType() != "" {
			contentType = m.GetContentType()
		}
		pieces = append(pieces, string(m.GetData()))
	}
}

func TestRawCallOverGRPC(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error {
		if err := to.Begin(200, http.Header{"Content-Type": {"text/event-stream"}, "X-Request-Id": {"id"}, "X-Kvpilot-Replica": {"r-1"}, "Server": {"uvicorn"}}); err != nil {
			return err
		}
		buf := make([]byte, 2)
		for _, piece := range []string{"a1", "b2", "c3"} {
			copy(buf, piece)
			if err := to.Write(buf); err != nil {
				return err
			}
		}
		return nil
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "id", "x-session-id", "s", "x-kvpilot-policy", "round-robin", "x-kvpilot-pin", "r-1@2")
	stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).ChatCompletions(ctx, &httpbody.HttpBody{ContentType: "application/json", Data: []byte(`{"x":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	pieces, contentType, err := recvAll(stream)
	if err != nil || !slices.Equal(pieces, []string{"a1", "b2", "c3"}) || contentType != "text/event-stream" {
		t.Errorf("answer %q %q, %v", pieces, contentType, err)
	}
	header, _ := stream.Header()
	if header.Get("x-kvpilot-replica")[0] != "r-1" || header.Get("x-request-id")[0] != "id" || len(header.Get("server")) != 0 {
		t.Errorf("response metadata %v", header)
	}
	c := r.router.call
	if c.Route != openai.RouteChat || c.Path != "/v1/chat/completions" || c.Method != "POST" || string(c.Body) != `{"x":1}` || c.RequestID != "id" || c.Header.Get("X-Session-Id") != "s" || c.ContentType != "application/json" {
		t.Errorf("the router was called with %+v", c)
	}
	if o := c.Options; o.Policy != decision.RoundRobin || o.Pinned != "r-1" || o.PinnedRank != 2 {
		t.Errorf("options %+v", o)
	}
}

// The contract calls a body that says nothing of its type JSON.
func TestABodyWithoutContentTypeIsJSON(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error { return to.Begin(200, http.Header{}) }
	client := kvpilotv1.NewInferenceServiceClient(r.socket)
	for said, want := range map[string]string{"": "application/json", "multipart/form-data; boundary=b": "multipart/form-data; boundary=b"} {
		stream, err := client.Completions(t.Context(), &httpbody.HttpBody{ContentType: said, Data: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := recvAll(stream); err != nil || r.router.call.ContentType != want {
			t.Errorf("%q: the router was told %q, %v", said, r.router.call.ContentType, err)
		}
		forward, err := client.Forward(t.Context(), &kvpilotv1.ForwardRequest{Path: "/x", ContentType: said})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := recvAll(forward); err != nil || r.router.call.ContentType != want {
			t.Errorf("forward %q: the router was told %q, %v", said, r.router.call.ContentType, err)
		}
	}
}

func TestEveryRawRouteReachesTheRouter(t *testing.T) {
	conf := grpcapi.DefaultConfig()
	conf.OpenAdapters = true
	r := newRig(t, conf)
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error {
		return to.Begin(201, http.Header{"Content-Type": {"application/json"}})
	}
	service := kvpilotv1.File_kvpilot_v1_inference_proto.Services().ByName("InferenceService")
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		if m.Input().FullName() != "google.api.HttpBody" {
			continue
		}
		desc := &grpc.StreamDesc{ServerStreams: true}
		stream, err := r.socket.NewStream(t.Context(), desc, "/kvpilot.v1.InferenceService/"+string(m.Name()))
		if err != nil {
			t.Fatal(err)
		}
		r.router.call = nil
		if err := stream.SendMsg(&httpbody.HttpBody{Data: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		_ = stream.CloseSend() // an error shows in RecvMsg
		var out httpbody.HttpBody
		if err := stream.RecvMsg(&out); err != nil || out.GetContentType() != "application/json" {
			t.Errorf("%s: %v, %v", m.Name(), &out, err)
		}
		header, _ := stream.Header()
		if got := header.Get("x-http-status"); len(got) != 1 || got[0] != "201" {
			t.Errorf("%s: status %v", m.Name(), got)
		}
		if r.router.call == nil || r.router.call.Path == "" {
			t.Errorf("%s did not reach the router", m.Name())
		}
		if err := stream.RecvMsg(&out); !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", m.Name(), err)
		}
	}
}

func TestStoredResponsesAndForward(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error { return to.Write([]byte("x")) }
	client := kvpilotv1.NewInferenceServiceClient(r.socket)
	yes, after := true, int64(7)
	stream, err := client.RetrieveResponse(t.Context(), &kvpilotv1.RetrieveResponseRequest{ResponseId: "a b", Stream: &yes, StartingAfter: &after})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := recvAll(stream); err != nil {
		t.Fatal(err)
	}
	if c := r.router.call; c.Path != "/v1/responses/a%20b" || c.Method != "GET" || c.RawQuery != "starting_after=7&stream=true" || r.router.storedID != "a b" {
		t.Errorf("retrieve: %+v", c)
	}
	if stream, err = client.CancelResponse(t.Context(), &kvpilotv1.CancelResponseRequest{ResponseId: "r"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := recvAll(stream); err != nil || r.router.call.Path != "/v1/responses/r/cancel" || r.router.call.Method != "POST" {
		t.Errorf("cancel: %+v, %v", r.router.call, err)
	}
	if stream, err = client.Forward(t.Context(), &kvpilotv1.ForwardRequest{Path: "/new", Query: "a=b", Body: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := recvAll(stream); err != nil || r.router.call.Path != "/new" || r.router.call.Route != openai.RouteOther || r.router.call.RawQuery != "a=b" {
		t.Errorf("forward: %+v, %v", r.router.call, err)
	}
}

func TestErrorsOverGRPC(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	call := func(err error) *status.Status {
		r.router.serve = func(context.Context, *intake.Call, intake.Sink) error {
			if err == nil {
				panic("bug")
			}
			return err
		}
		stream, openErr := kvpilotv1.NewInferenceServiceClient(r.socket).ChatCompletions(t.Context(), &httpbody.HttpBody{})
		if openErr != nil {
			t.Fatal(openErr)
		}
		_, _, err = recvAll(stream)
		return status.Convert(err)
	}
	for name, tc := range map[string]struct {
		err     error
		code    codes.Code
		message string
		reason  string
	}{
		"ours":   {apierror.New(apierror.NoReplica, "none", errors.New("10.0.0.1")), codes.Unavailable, "none", "NO_REPLICA"},
		"hidden": {errors.New("dial 10.0.0.1"), codes.Internal, "internal error", "INTERNAL"},
		"a bug":  {nil, codes.Internal, "internal error", "INTERNAL"},
	} {
		st := call(tc.err)
		if st.Code() != tc.code || st.Message() != tc.message {
			t.Errorf("%s: %v", name, st)
		}
		info, _ := st.Details()[0].(*errdetails.ErrorInfo)
		if info.GetReason() != tc.reason || info.GetDomain() != "kvpilot" {
			t.Errorf("%s: details %v", name, st.Details())
		}
	}
}

func TestRules(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	r.router.choose = func(*intake.Question) (*router.Answer, error) { return nil, errors.New("must not be asked") }
	for _, conn := range []grpc.ClientConnInterface{r.socket, r.hop} {
		routing := kvpilotv1.NewRoutingServiceClient(conn)
		_, err := routing.ChooseReplica(t.Context(), &kvpilotv1.ChooseReplicaRequest{Model: strings.Repeat("m", 600)})
		if e := apierror.From(err); e.Reason != apierror.InvalidBody || e.Param != "model" || status.Code(err) != codes.InvalidArgument {
			t.Errorf("a long model: %v, param %q", err, e.Param)
		}
		_, err = routing.ReportReservation(t.Context(), reports.Renew(""))
		if e := apierror.From(err); e.Param != "reservation_id" {
			t.Errorf("no reservation: %v", err)
		}
		_, err = kvpilotv1.NewReplicaServiceClient(conn).Register(t.Context(), &kvpilotv1.RegisterRequest{ReplicaId: "a b", Url: "ftp://x"})
		if e := apierror.From(err); e.Reason != apierror.InvalidBody {
			t.Errorf("a bad replica: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := routing.TrackReservation(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&kvpilotv1.ReservationReport{Sequence: 1}); err != nil {
			t.Fatal(err)
		}
		if out, err := stream.Recv(); err != nil || out.GetReason() != apierror.InvalidBody { // one bad report ends no stream
			t.Errorf("a report of nothing: %v, %v", out, err)
		}
		cancel()
	}
}

func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("# people\nops:operator-key:admin\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := grpcapi.DefaultConfig()
	c.Keys, c.KeysFile = []grpcapi.Key{{Name: "team", Key: secret.New("team-key-1")}}, file
	r := newRig(t, c)
	r.router.serve = func(_ context.Context, _ *intake.Call, to intake.Sink) error { return to.Write([]byte("x")) }
	chat := func(pairs ...string) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
		stream, err := kvpilotv1.NewInferenceServiceClient(r.socket).ChatCompletions(ctx, &httpbody.HttpBody{})
		if err != nil {
			return err
		}
		_, _, err = recvAll(stream)
		return err
	}
	drain := func(limit time.Duration, pairs ...string) error {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), pairs...), limit)
		defer cancel()
		_, err := kvpilotv1.NewReplicaServiceClient(r.socket).Drain(ctx, &kvpilotv1.DrainRequest{ReplicaId: "x"})
		return err
	}
	for name, tc := range map[string]struct {
		err  error
		want codes.Code
	}{
		"no key":                 {chat(), codes.Unauthenticated},
		"a wrong key":            {chat("authorization", "Bearer team-key-2"), codes.Unauthenticated},
		"a key":                  {chat("authorization", "bearer team-key-1"), codes.OK},
		"Anthropic's header":     {chat("x-api-key", "team-key-1"), codes.OK},
		"no admin":               {drain(time.Minute, "authorization", "Bearer team-key-1"), codes.PermissionDenied},
		"an admin from the file": {drain(50*time.Millisecond, "authorization", "Bearer operator-key"), codes.DeadlineExceeded}, // let in; the registry does not run
	} {
		if status.Code(tc.err) != tc.want {
			t.Errorf("%s: %v, want %s", name, tc.err, tc.want)
		}
	}
	if err := chat("x-api-key", "team-key-1"); err != nil || r.router.call.Tenant != "team" {
		t.Errorf("tenant %q, %v", r.router.call.Tenant, err)
	}
	// What the REST surface has checked is not checked again, but for an admin's calls.
	ctx := httpcall.With(t.Context(), &httpcall.Call{Call: intake.Call{Header: http.Header{}}, Caller: &caller.Caller{Tenant: "team", Roles: caller.Default}})
	if _, err := kvpilotv1.NewInferenceServiceClient(r.hop).ListModels(ctx, &kvpilotv1.ListModelsRequest{}); err != nil {
		t.Errorf("behind the gateway: %v", err)
	}
	if _, err := kvpilotv1.NewReplicaServiceClient(r.hop).Drain(ctx, &kvpilotv1.DrainRequest{ReplicaId: "x"}); status.Code(err) == codes.OK {
		t.Error("behind the gateway anybody may drain")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := grpcapi.New(c, grpcapi.Params{}); err == nil {
		t.Error("an empty file of keys lets everybody in")
	}
}

func answer(id replica.ID, ttft ...float64) *router.Answer {
	d := &decision.Decision{
		Request: decision.Request{ID: "d-1"},
		Rule:    decision.Rule{Policy: decision.PredictedTTFT},
		Reason:  decision.ReasonCost,
		Prompt:  decision.Prompt{PromptTokens: 48},
		Ranks:   decision.Ranks{Chosen: 0},
	}
	for i, seconds := range ttft {
		d.Candidates = append(d.Candidates, decision.Candidate{
			RankID:   decision.RankID{Replica: id, Rank: uint16(i)},
			Forecast: decision.Forecast{TTFT: seconds},
			Overlap:  decision.Overlap{GPU: 32, CPU: 16},
		})
	}
	return &router.Answer{
		Choice: &chooser.Choice{Decision: d, Replica: &replica.Replica{ID: id, URL: "http://h:8000", Slots: make([]replica.Slot, len(ttft))}},
		Host:   "h", Port: 8000, Served: "m", Lease: 30 * time.Second,
	}
}

func BenchmarkDecodeTokenIDs(b *testing.B) {
	in := &kvpilotv1.TokenIds{Ids: make([]uint32, 131072)}
	for i := range in.Ids {
		in.Ids[i] = uint32(i * 7 % 128000)
	}
	benchDecode(b, in)
}

// A message that breaks several rules is answered with all of them.
func TestEveryBrokenRuleIsNamed(t *testing.T) {
	r := newRig(t, grpcapi.DefaultConfig())
	in := &kvpilotv1.ChooseReplicaRequest{Model: strings.Repeat("m", 513), Priority: 1001, Lease: durationpb.New(-time.Second)}
	for name, conn := range map[string]grpc.ClientConnInterface{"gRPC": r.socket, "REST": r.hop} {
		_, err := kvpilotv1.NewRoutingServiceClient(conn).ChooseReplica(t.Context(), in)
		e := apierror.From(err)
		var fields []string
		for _, v := range e.Violations {
			fields = append(fields, v.Field)
		}
		if e.Param != "model" || !slices.Equal(fields, []string{"model", "priority", "lease"}) || !strings.Contains(e.Message, "; lease: must be") {
			t.Errorf("%s: %v, fields %v", name, err, fields)
		}
	}
}
