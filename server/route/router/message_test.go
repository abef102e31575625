package router_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/route/router/intake"
	"github.com/kvpilot/kvpilot/server/tokens/openai"
)

const (
	askedMessage = `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
	asAChat      = `{"stream":true,"stream_options":{"include_usage":true},"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"tool_choice":null,"stop":null,"return_token_ids":true}`
	ownEvents    = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"own\",\"role\":\"assistant\",\"content\":[]}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	chatUsage    = `data: {"id":"one","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4}}` + "\n\n"
)

// said are the events of a message with a text.
func saidMessage(texts ...string) string {
	out := `event: message_start
data: {"type":"message_start","message":{"id":"one","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":4,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}

`
	for _, text := range texts {
		out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"" + text + "\"},\"index\":0}\n\n"
	}
	return out + `event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":4,"output_tokens":4}}

event: message_stop
data: {"type":"message_stop"}

`
}

// converses has all engines answer a message with own events, its chat with the steps in turn and a continuation with its end, and keeps the requests.
func (f *fleet) converses(steps ...http.HandlerFunc) (got func() []string) {
	var mu sync.Mutex
	var list []string
	chats := 0
	f.script(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(nil))
		if r.URL.Path == "/v1/messages/render" {
			text(200, `{"request_id":"r","token_ids":[1,2,3,4],"features":null,"sampling_params":{}}`)(w, r)
			return
		}
		mu.Lock()
		list = append(list, r.URL.Path+" "+string(body))
		step := steps[min(chats, len(steps)-1)]
		switch r.URL.Path {
		case "/v1/chat/completions":
			chats++
		case "/v1/messages":
			step = whole([]string{ownEvents})
		case "/v1/completions":
			step = whole(append(world()[:2], strings.Replace(chatUsage, `"completion_tokens":4`, `"completion_tokens":2`, 1), end))
		default:
			step = http.NotFound
		}
		mu.Unlock()
		step(w, r)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

func sampledMessage() *intake.Call {
	return &intake.Call{Route: openai.RouteMessages, Body: []byte(askedMessage)}
}

func TestASampledMessageIsAskedForAsAChat(t *testing.T) {
	all := append(hello(), event("chat", "one", " wor", "[12]", "null"), event("chat", "one", "ld", "[13]", "stop"), chatUsage, end)
	f := startVersion(t, 2, "0.33.0", nil)
	got := f.converses(whole(all))
	to := &client{}
	if err := f.router.Serve(t.Context(), sampledMessage(), to); err != nil || to.body.String() != saidMessage("Hel", "lo", " wor", "ld") {
		t.Errorf("Serve() = %v, and the client has\n%s", err, &to.body)
	}
	if list := got(); len(list) != 1 || list[0] != "/v1/chat/completions "+asAChat {
		t.Errorf("the engines got\n%s", strings.Join(list, "\n"))
	}
	f.settled()
}

func TestASampledMessageContinues(t *testing.T) {
	f := startVersion(t, 2, "0.33.0", nil)
	f.resuming(1)
	got := f.converses(streaming(hello(), cut))
	to := &client{}
	if err := f.router.Serve(t.Context(), sampledMessage(), to); err != nil || to.body.String() != saidMessage("Hel", "lo", " wor", "ld") {
		t.Errorf("Serve() = %v, and the client has\n%s", err, &to.body)
	}
	if list := got(); len(list) != 2 || !strings.HasPrefix(list[1], `/v1/completions {"model":"m","stream":true,"return_token_ids":true,"max_tokens":7,"prompt":[1,2,3,4,10,11]`) {
		t.Errorf("the engines got\n%s", strings.Join(list, "\n"))
	}
	f.settled()
}

// Where the chat of a message is not certain to be the message, the client gets the engine's own events, and no replica is blamed.
func TestAMessageIsSentWhenItsChatIsNotTheSame(t *testing.T) {
	for name, step := range map[string]http.HandlerFunc{
		"another prompt":           whole(append([]string{strings.Replace(role, "[1,2,3,4]", "[1,2,3,5]", 1)}, hello()[1:]...)),
		"a longer prompt":          whole(append([]string{strings.Replace(role, "[1,2,3,4]", "[1,2,3,4,5]", 1)}, hello()[1:]...)),
		"no ids":                   whole([]string{strings.Replace(role, "[1,2,3,4]", "null", 1), event("chat", "one", "Hel", "null", "null")}),
		"it is rejected":           text(400, `{"error":{"message":"tool_choice must not be null"}}`),
		"it fails":                 text(500, `{"error":{"message":"no"}}`),
		"an answer in one piece":   text(200, `{"id":"one","choices":[]}`),
		"events of another form":   whole([]string{"data: {\"id\":1}\r\n\r\n"}),
		"an event that is no JSON": whole([]string{"data: hello\n\n"}),
		"an error at once":         whole([]string{`data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}` + "\n\n", end}),
	} {
		t.Run(name, func(t *testing.T) {
			f := startVersion(t, 2, "0.33.0", nil)
			got := f.converses(step)
			for range 3 {
				to := &client{}
				if err := f.router.Serve(t.Context(), sampledMessage(), to); err != nil || to.body.String() != ownEvents {
					t.Fatalf("Serve() = %v, and the client has\n%s", err, &to.body)
				}
			}
			if list := got(); len(list) != 6 || list[1] != "/v1/messages "+askedMessage {
				t.Errorf("the engines got\n%s", strings.Join(list, "\n"))
			}
			for _, e := range f.engines {
				if e.requests() == 0 {
					t.Error("a replica was blamed: it gets no requests")
				}
			}
			f.settled()
		})
	}
}

// A replica that is busy or dies before it answers is no reason to send the message another way.
func TestAChatOfAMessageIsRetried(t *testing.T) {
	all := append(hello(), event("chat", "one", " wor", "[12]", "null"), event("chat", "one", "ld", "[13]", "stop"), chatUsage, end)
	for name, step := range map[string]http.HandlerFunc{"it takes none": text(503, `{}`), "it dies": cut, "its stream is empty": streaming(nil, cut)} {
		t.Run(name, func(t *testing.T) {
			f := startVersion(t, 2, "0.33.0", nil)
			got := f.converses(step, whole(all))
			to := &client{}
			if err := f.router.Serve(t.Context(), sampledMessage(), to); err != nil || to.body.String() != saidMessage("Hel", "lo", " wor", "ld") {
				t.Fatalf("Serve() = %v, and the client has\n%s", err, &to.body)
			}
			for _, one := range got() {
				if one != "/v1/chat/completions "+asAChat {
					t.Errorf("an engine got %s", one)
				}
			}
			f.settled()
		})
	}
}

func TestAMessageIsNotTranslatedWithout(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		change  func(*intake.Config)
		header  http.Header
	}{
		"a version that was compared": {"0.34.0", func(*intake.Config) {}, nil},
		"the setting":                 {"0.33.0", func(c *intake.Config) { c.ResumeMessages = false }, nil},
		"any resumes":                 {"0.33.0", func(c *intake.Config) { c.ResumeStreams = 0 }, nil},
		"the client's consent":        {"0.33.0", func(*intake.Config) {}, http.Header{"X-Kvpilot-Resume": {"off"}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startVersion(t, 2, c.version, nil)
			set := intake.DefaultConfig()
			c.change(&set)
			if err := f.router.Update(set, 3); err != nil {
				t.Fatal(err)
			}
			got := f.converses(http.NotFound)
			call, to := sampledMessage(), &client{}
			call.Header = c.header
			if err := f.router.Serve(t.Context(), call, to); err != nil || to.body.String() != ownEvents {
				t.Errorf("Serve() = %v, and the client has\n%s", err, &to.body)
			}
			if list := got(); len(list) != 1 || list[0] != "/v1/messages "+askedMessage {
				t.Errorf("the engines got\n%s", strings.Join(list, "\n"))
			}
			f.settled()
		})
	}
}
