package streambench

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Model is the name that the fake upstream serves.
const Model = "bench"

// fake is the upstream of all subjects: it speaks as much of vLLM as a router needs.
type fake struct {
	chunks atomic.Int64
	every  atomic.Int64 // nanoseconds
	hold   atomic.Bool  // after the first chunk, wait for the client to go
	active atomic.Int64
	bodies sync.Pool    // of *bytes.Buffer
	cache  *prefixCache // nil: no events
}

// ServeUpstream is the main function of the upstream's process.
func ServeUpstream(ctx context.Context, out io.Writer) error {
	return serveLoopback(ctx, newFake().routes(), out)
}

func newFake() *fake {
	return &fake{bodies: sync.Pool{New: func() any { return new(bytes.Buffer) }}}
}

func (f *fake) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/bench/set", f.set)
	mux.HandleFunc("/bench/active", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, f.active.Load()) })
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", constant(`{"version":"0.24.0"}`))
	mux.HandleFunc("GET /v1/models", constant(`{"object":"list","data":[{"id":"`+Model+`","object":"model","created":1,"owned_by":"vllm","root":"`+Model+`","parent":null,"max_model_len":1048576}]}`))
	mux.HandleFunc("GET /metrics", constant("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100000\"} 1\n"))
	mux.HandleFunc("POST /v1/chat/completions/render", f.render)
	mux.HandleFunc("POST /tokenize", f.tokenize)
	mux.HandleFunc("POST /v1/chat/completions", f.chat)
	return mux
}

// serveLoopback serves on a free port, and writes its address as the first line of out.
func serveLoopback(ctx context.Context, h http.Handler, out io.Writer) error {
	return serveLoopbackWith(ctx, h, out, "")
}

// serveLoopbackWith writes more behind its address.
func serveLoopbackWith(ctx context.Context, h http.Handler, out io.Writer, more string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	fmt.Fprintf(out, "%s%s\n", l.Addr(), more)
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func constant(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func (f *fake) set(_ http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(q.Get(name), 10, 64) // absent is zero
		return n
	}
	f.chunks.Store(number("chunks"))
	f.every.Store(number("every"))
	f.hold.Store(q.Get("hold") == "1")
}

// tokens are promptTokens ids; texts with a common beginning have their ids in common.
func tokens(body []byte) []uint32 {
	rest := body[max(bytes.Index(body, []byte(`"messages":[`)), 0):]
	list := make([]uint32, promptTokens(body))
	for i := range list {
		n := min(10, len(rest))
		list[i] = crc32.ChecksumIEEE(rest[:n]) % 50000
		rest = rest[n:]
	}
	return list
}

// ids are the tokens as JSON.
func ids(body []byte) []byte { return rawjson.AppendUint32s(nil, tokens(body)) }

func (f *fake) render(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, `{"request_id":"r","model":%q,"token_ids":%s,"features":null,"sampling_params":{}}`, Model, ids(body))
}

func (f *fake) tokenize(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	n := promptTokens(body)
	fmt.Fprintf(w, `{"count":%d,"max_model_len":1048576,"tokens":%s,"token_strs":null}`, n, ids(body))
}

// promptTokens is how many ids render and tokenize make of the body's messages.
func promptTokens(body []byte) int {
	messages := body[max(bytes.Index(body, []byte(`"messages":[`)), 0):]
	return (bytes.LastIndex(messages, []byte("}]"))+1)/10 + 1
}

// usage appends the cost of the request.
func usage(to []byte, prompt int) []byte {
	return fmt.Appendf(to, `,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":200}`, prompt, prompt+200)
}

// answer is the answer to an unstreamed request, but for its usage: a kilobyte, as a short chat answer is.
var answer = []byte(`{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"` +
	string(bytes.Repeat([]byte("lorem ipsum dolor sit amet, "), 28)) + `"},"logprobs":null,"finish_reason":"stop"}]`)

func (f *fake) chat(w http.ResponseWriter, r *http.Request) {
	f.active.Add(1)
	defer f.active.Add(-1)
	body := f.bodies.Get().(*bytes.Buffer)
	body.Reset()
	_, _ = body.ReadFrom(r.Body) // a short body is the fault of the proxy and shows elsewhere
	streamed := bytes.Contains(body.Bytes()[:min(body.Len(), 4096)], []byte(`"stream":true`))
	prompt := promptTokens(body.Bytes())
	if f.cache != nil {
		f.cache.served(tokens(body.Bytes()))
	}
	var list []byte
	if streamed && bytes.Contains(body.Bytes(), []byte(`"return_token_ids":true`)) {
		list = ids(body.Bytes())
	}
	f.bodies.Put(body)
	if streamed {
		f.stream(w, r, prompt, list)
		return
	}
	text := append(usage(append(make([]byte, 0, 2048), answer...), prompt), '}')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// phaseHeader names the part of its interval in which a stream gets its chunks, in nanoseconds. The load
// gives the same phases to every subject: which streams fall together decides how long chunks wait.
const phaseHeader = "X-Bench-Phase"

// ticks are the moments of a stream's chunks. A missed tick is left out, as a busy engine would.
type ticks struct {
	every time.Duration
	due   time.Time
	timer *time.Timer
}

func newTicks(every, phase time.Duration) *ticks {
	now := time.Now()
	t := &ticks{every: every, due: now.Add(every - time.Duration((now.UnixNano()-int64(phase))%int64(every)))}
	t.timer = time.NewTimer(time.Until(t.due))
	return t
}

// next arms the timer again.
func (t *ticks) next() {
	now := time.Now()
	t.due = t.due.Add(t.every)
	if late := now.Sub(t.due); late > 0 {
		t.due = t.due.Add(late - late%t.every + t.every)
	}
	t.timer.Reset(t.due.Sub(now))
}

// stream sends chunks of about 240 bytes, each with the time of its writing; with the token ids when promptIDs are the prompt's.
func (f *fake) stream(w http.ResponseWriter, r *http.Request, prompt int, promptIDs []byte) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out := http.NewResponseController(w)
	chunk := []byte(`data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"bench","choices":[{"index":0,"delta":{"content":" token ` + stamp)
	size := len(chunk)
	end := `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n" // as vLLM writes it: a client of any router gets as many bytes
	if promptIDs != nil {
		end = strings.Replace(end, `"token_ids":null`, `"token_ids":[12345]`, 1)
	}
	phase, _ := strconv.ParseInt(r.Header.Get(phaseHeader), 10, 64) // absent is zero
	tick := newTicks(max(time.Duration(f.every.Load()), time.Microsecond), time.Duration(phase))
	defer tick.timer.Stop()
	for n := range f.chunks.Load() {
		chunk = append(strconv.AppendInt(chunk[:size], time.Now().UnixNano(), 10), end...)
		if n == 0 && promptIDs != nil {
			chunk = append(append(append(chunk[:len(chunk)-len("}\n\n")], `,"prompt_token_ids":`...), promptIDs...), "}\n\n"...)
		}
		if _, err := w.Write(chunk); err != nil || out.Flush() != nil {
			return
		}
		if f.hold.Load() {
			<-r.Context().Done()
			return
		}
		select {
		case <-tick.timer.C:
			tick.next()
		case <-r.Context().Done():
			return
		}
	}
	last := usage([]byte(`data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","choices":[]`), prompt)
	_, _ = w.Write(append(last, "}\n\ndata: [DONE]\n\n"...))
}

// stamp precedes the time of a chunk's writing, in nanoseconds. It is part of the text, as all that changes from event to event.
const stamp = `stamp:`
