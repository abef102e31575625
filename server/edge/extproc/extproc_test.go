package extproc

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

func TestConfigNamesEachMistake(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	bad := Config{Listen: "nowhere", Health: "x", TLS: "maybe", TLSCert: "a", Response: "some", Endpoints: 0, ChunkBytes: 1, MaxBodyBytes: -1}
	err := bad.Validate()
	for _, setting := range []string{"listen", "health", "tls", "tls_cert", "response", "endpoints", "chunk_bytes", "max_body_bytes"} {
		if err == nil || !strings.Contains("\n"+err.Error(), "\n"+setting+": ") {
			t.Errorf("%s is not named in %v", setting, err)
		}
	}
	if err := (Config{Health: "127.0.0.1:1", TLS: TLSOff, Response: ResponseFull, Endpoints: 1, ChunkBytes: 2000}).Validate(); err == nil {
		t.Error("health without listen is accepted")
	}
}

func value(v any) *structpb.Value {
	out, err := structpb.NewValue(v)
	if err != nil {
		panic(err)
	}
	return out
}

func TestHints(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		want  []string
		given bool
	}{
		"a list":            {[]any{"10.0.0.1:8000", " 10.0.0.2 ", ""}, []string{"10.0.0.1:8000", "10.0.0.2"}, true},
		"a string":          {"10.0.0.1:8000,10.0.0.2:8000, ,", []string{"10.0.0.1:8000", "10.0.0.2:8000"}, true},
		"IPv6":              {"[2001:DB8::1]:8000,2001:db8::2,[::ffff:10.0.0.1]:80", []string{"[2001:db8::1]:8000", "2001:db8::2", "10.0.0.1:80"}, true},
		"an empty list":     {[]any{}, nil, true},
		"an empty string":   {"", nil, true},
		"a list of numbers": {[]any{1.0, true}, nil, true},
		"a number":          {3.0, nil, false},
		"nothing":           {nil, nil, false},
	} {
		m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespaceSubset: {Fields: map[string]*structpb.Value{keySubset: value(c.value)}}}}
		got, given := hints(m)
		if given != c.given || len(got) != len(c.want) || len(got) > 0 && !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, given, c.want, c.given)
		}
	}
	for _, m := range []*corev3.Metadata{nil, {}, {FilterMetadata: map[string]*structpb.Struct{namespaceSubset: nil}}} {
		if _, given := hints(m); given {
			t.Errorf("%v has hints", m)
		}
	}
}

func FuzzHints(f *testing.F) {
	for _, text := range []string{"10.0.0.1:8000,10.0.0.2", "[::1]:80", ",,,", "[", "a:b:c", "::1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, one := range []*structpb.Value{structpb.NewStringValue(text), structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue(text), nil}})} {
			m := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespaceSubset: {Fields: map[string]*structpb.Value{keySubset: one}}, namespaceLB: {Fields: map[string]*structpb.Value{keyServed: one}}}}
			list, _ := hints(m)
			for _, at := range list {
				if at != canonicalEndpoint(at) {
					t.Errorf("%q becomes %q, which becomes %q", text, at, canonicalEndpoint(at))
				}
			}
			served(m)
		}
	})
}

func TestHeadersAreReadInEitherForm(t *testing.T) {
	f := fieldsOf(&corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: ":path", RawValue: []byte("/v1/chat/completions?a=b")}, {Key: ":method", Value: "POST"}, {Key: "x-request-id", Value: "old"},
		{Key: "x-forwarded-for", RawValue: []byte("10.0.0.1, 10.0.0.2")}, {Key: "x-forwarded-for", RawValue: []byte("192.0.2.9")}, nil,
	}})
	s := &Server{config: Config{Objectives: map[string]int{"urgent": 5}}}
	rq := newRequest(f, s.priority)
	if c := rq.call; c.Method != "POST" || c.Path != "/v1/chat/completions" || c.RawQuery != "a=b" || c.RequestID != "old" || c.Client != "192.0.2.9" {
		t.Errorf("%+v", c)
	}
	if got := fieldsOf(nil); len(got.header) != 0 || got.status() != 0 {
		t.Errorf("no headers: %v", got)
	}
	f.header.Set("X-Gateway-Inference-Objective", "urgent")
	if rq := newRequest(f, s.priority); rq.call.Priority != 5 {
		t.Errorf("priority %d, want that of the objective", rq.call.Priority)
	}
}

// objectives are those of a cluster.
type objectives map[string]int

func (o objectives) Priority(name string) (int, bool) { p, ok := o[name]; return p, ok }

func TestThePriorityIsTheObjectives(t *testing.T) {
	s := &Server{config: Config{Objectives: map[string]int{"urgent": 5}}, params: Params{Objectives: objectives{"urgent": 1, "batch": -2}}}
	for name, want := range map[string]int{"urgent": 5, "batch": -2, "unknown": 0, "": 0} {
		if got := s.priority(name); got != want {
			t.Errorf("%q has priority %d, want %d", name, got, want)
		}
	}
}

func TestMutationsOverwrite(t *testing.T) {
	m := mutation(http.Header{"X-B": {"1", "2"}, "X-A": {"0"}}, []string{"x-c"})
	var got []string
	for _, h := range m.GetSetHeaders() {
		got = append(got, h.GetHeader().GetKey()+"="+string(h.GetHeader().GetRawValue())+" "+h.GetAppendAction().String())
	}
	want := []string{"x-a=0 OVERWRITE_IF_EXISTS_OR_ADD", "x-b=1 OVERWRITE_IF_EXISTS_OR_ADD", "x-b=2 APPEND_IF_EXISTS_OR_ADD"}
	if !slices.Equal(got, want) || !slices.Equal(m.GetRemoveHeaders(), []string{"x-c"}) {
		t.Errorf("%q, without %q", got, m.GetRemoveHeaders())
	}
	if mutation(nil, nil) != nil {
		t.Error("nothing changes by a message")
	}
}

func TestPieces(t *testing.T) {
	for _, c := range []struct {
		size, piece int
		end         bool
		want        []int
	}{{0, 10, true, []int{0}}, {0, 10, false, nil}, {5, 10, true, []int{5}}, {10, 10, true, []int{10}}, {25, 10, true, []int{10, 10, 5}}, {25, 10, false, []int{10, 10, 5}}} {
		var got []int
		ends := 0
		err := pieces(make([]byte, c.size), c.piece, c.end, func(p []byte, end bool) error {
			got = append(got, len(p))
			if end {
				ends++
			}
			return nil
		})
		if err != nil || !slices.Equal(got, c.want) || ends == 1 != c.end {
			t.Errorf("%+v: %v, %d ends, %v", c, got, ends, err)
		}
	}
	gone := errors.New("gone")
	if err := pieces(make([]byte, 30), 10, true, func([]byte, bool) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("a gateway that has left: %v", err)
	}
}

func TestDroppedReasons(t *testing.T) {
	for want, errs := range map[string][]*apierror.Error{
		droppedExpired: {
			apierror.New(apierror.Overloaded, "", &chooser.Refused{Cause: "timeout"}), apierror.New(apierror.Overloaded, "", &chooser.Refused{Cause: "memory"}),
		},
		droppedSaturated: {
			apierror.New(apierror.Overloaded, "", &chooser.Refused{Cause: "queue_full"}), apierror.New(apierror.DeadlineUnreachable, "", &chooser.Refused{Cause: "target"}),
			apierror.New(apierror.Overloaded, "", nil),
		},
		droppedStopping:    {apierror.New(apierror.ShuttingDown, "", &chooser.Refused{Cause: "shutdown"}), apierror.New(apierror.ShuttingDown, "", nil)},
		droppedNoEndpoints: {apierror.New(apierror.NoReplica, "", nil)},
		droppedCancelled:   {apierror.New(apierror.Cancelled, "", nil), apierror.New(apierror.DeadlineExceeded, "", nil)},
		"":                 {apierror.New(apierror.InvalidBody, "", nil), apierror.New(apierror.ModelNotFound, "", nil), apierror.New(apierror.RateLimitExceeded, "", nil)},
	} {
		for _, e := range errs {
			if got := droppedFor(e); got != want {
				t.Errorf("%v: %q, want %q", e, got, want)
			}
		}
	}
}

// A refusal is an answer in the form of the client's API.
func TestRefusalsAreAnswers(t *testing.T) {
	e := apierror.New(apierror.NoReplica, "none", nil, apierror.WithRetryAfter(1500*time.Millisecond))
	for path, begins := range map[string]string{"/v1/chat/completions": `{"error":`, "/v1/messages": `{"type":"error"`} {
		m := refusal(e, path, "id").GetImmediateResponse()
		got := map[string]string{}
		for _, h := range m.GetHeaders().GetSetHeaders() {
			got[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
		}
		want := map[string]string{
			"content-type": "application/json", "retry-after": "2", "retry-after-ms": "1500", "x-kvpilot-reason": "NO_REPLICA", "x-request-id": "id",
			"x-llm-d-request-dropped-reason": droppedNoEndpoints,
		}
		if m.GetStatus().GetCode() != 503 || !reflect.DeepEqual(got, want) || !strings.HasPrefix(string(m.GetBody()), begins) {
			t.Errorf("%s: %v %v %s", path, m.GetStatus(), got, m.GetBody())
		}
	}
}

func TestEndpointsOfReplicas(t *testing.T) {
	e := newEndpoints()
	e.names["engine.example"] = lookup{"10.0.0.9", time.Now()}
	for url, want := range map[string]string{
		"http://10.0.0.1:8000": "10.0.0.1:8000", "http://10.0.0.1": "10.0.0.1:80", "https://10.0.0.1": "10.0.0.1:443", "http://[2001:db8::1]:8000/base": "[2001:db8::1]:8000",
		"http://engine.example:8000": "10.0.0.9:8000",
	} {
		if got, ok := e.of(t.Context(), &replica.Replica{URL: url}); !ok || got != want {
			t.Errorf("%s: %q, %v; want %q", url, got, ok, want)
		}
	}
	if got, ok := e.of(t.Context(), &replica.Replica{URL: "http://bad name\x00"}); ok {
		t.Errorf("a URL without a host: %q", got)
	}
}

func TestRequestsThatDoNotWaitForTheirBody(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		header http.Header
		want   bool
	}{
		"a chat":      {"POST", http.Header{}, false},
		"a list":      {"GET", http.Header{}, true},
		"a WebSocket": {"GET", http.Header{"Upgrade": {"websocket"}}, true},
		"gRPC":        {"POST", http.Header{"Content-Type": {"application/grpc+proto"}}, true},
	} {
		rq := &request{}
		rq.call.Method, rq.call.Header = c.method, c.header
		if rq.opaque() != c.want {
			t.Errorf("%s: opaque is %v", name, rq.opaque())
		}
	}
}

func TestSendersNeedTheRoleOfTheRoute(t *testing.T) {
	for target, want := range map[string]string{
		"POST /v1/chat/completions": "ChatCompletions", "POST /v1/embeddings": "ChatCompletions", "GET /v1/models": "ChatCompletions", "POST /v1/load_lora_adapter": "LoadAdapter",
		"POST /v1/responses/resp_1/cancel": "Responses", "POST /sleep": "Forward",
	} {
		method, path, _ := strings.Cut(target, " ")
		rq := newRequest(fields{map[string]string{":method": method, ":path": path}, http.Header{}}, (&Server{}).priority)
		if got := rq.rpc(); got != "/kvpilot.v1.InferenceService/"+want {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
}

func TestUnreachedReplicasAreKnownByEnvoysAnswer(t *testing.T) {
	envoys := func(more ...string) fields {
		h := http.Header{"Server": {"envoy"}, "Content-Type": {"text/plain"}}
		for i := 0; i+1 < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return fields{map[string]string{":status": "503"}, h}
	}
	if !unreached(envoys()) {
		t.Error("Envoy's own 503 is not known")
	}
	for name, f := range map[string]fields{
		"a replica's": envoys(headerServiceTime, "3"), "JSON": envoys("Content-Type", "application/json"), "another server's": envoys("Server", "uvicorn"),
		"another status": {map[string]string{":status": "500"}, envoys().header},
	} {
		if unreached(f) {
			t.Errorf("%s is taken for Envoy's", name)
		}
	}
}

func TestPartingsEndOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p partings
		var mu sync.Mutex // timers have goroutines of their own
		var ends []string
		one := func(name string) *ending {
			return &ending{func() {
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, name)
			}}
		}
		so := func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(ends)
		}
		p.add(0, one("soon"))
		p.add(time.Hour, one("at last"))
		p.add(5*time.Second, one("later"))
		time.Sleep(leastParting + time.Millisecond)
		synctest.Wait()
		if !slices.Equal(so(), []string{"soon"}) {
			t.Errorf("after a second: %v", so())
		}
		time.Sleep(mostParting)
		synctest.Wait()
		p.add(time.Minute, one("closed"))
		p.close()
		p.add(time.Minute, one("too late"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []string{"soon", "later", "at last", "closed", "too late"}; !slices.Equal(so(), want) {
			t.Errorf("%v, want %v", so(), want)
		}
	})
}

// ending is a parting of a test.
type ending struct{ f func() }

func (e *ending) end() { e.f() }
