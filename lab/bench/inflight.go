package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// benchInFlight measures the memory of a router for requests that are in flight with long prompts.
type benchInFlight struct {
	requests, tokens, replicas int
	memory                     int64
}

// inFlightFigures are the command's result.
type inFlightFigures struct {
	Requests int `json:"requests"`
	Tokens   int `json:"prompt_tokens"`
	// Answered requests have their first token and are in flight all at once, Refused ones got another status.
	Answered int64 `json:"answered"`
	Refused  int64 `json:"refused"`
	// WithoutIDs counts the prompts that were routed without ids, by any reason, Held the memory of the ids of requests in flight.
	WithoutIDs int64 `json:"without_ids"`
	Held       int64 `json:"held_bytes"`
	Limit      int64 `json:"memory_limit_bytes"`
	Resident   int64 `json:"resident_bytes"`
	Peak       int64 `json:"peak_bytes"`
}

func newInFlightCommand() *cobra.Command {
	var b benchInFlight
	cmd := figuresCommand("inflight", "Measure the memory of a router in a process of its own that has many long prompts in flight",
		func(cmd *cobra.Command) (*inFlightFigures, error) { return b.run(cmd.Context()) }, printInFlightBench)
	f := cmd.Flags()
	f.IntVar(&b.requests, "requests", 1000, "requests that are in flight at once")
	f.IntVar(&b.tokens, "tokens", 142_000, "tokens of each prompt, at four bytes each")
	f.IntVar(&b.replicas, "replicas", 4, "replicas that tokenize and answer")
	f.Int64Var(&b.memory, "memory", 4<<30, "memory.max_bytes of the router")
	return cmd
}

func printInFlightBench(out io.Writer, f *inFlightFigures) error {
	const mebi = 1 << 20
	_, err := fmt.Fprintf(out, "%d requests of %d tokens: %d in flight, %d refused, %d routed without ids; prompts hold %d MiB, the router has %d MiB resident (at most %d) of %d\n",
		f.Requests, f.Tokens, f.Answered, f.Refused, f.WithoutIDs, f.Held/mebi, f.Resident/mebi, f.Peak/mebi, f.Limit/mebi)
	return err
}

func (b benchInFlight) run(ctx context.Context) (*inFlightFigures, error) {
	if b.requests < 1 || b.tokens < 16 || b.replicas < 1 {
		return nil, errors.New("requests and replicas must be at least 1, tokens at least 16")
	}
	engine := &holdingEngine{tokens: b.tokens, release: make(chan struct{})}
	var args []string
	for range b.replicas {
		address, stop, err := engine.serve(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		args = append(args, "--replica", "http://"+address)
	}
	addresses, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append(args, "--http", addresses[0], "--grpc", addresses[1], "--admin", addresses[2],
		"--set", "memory.max_bytes="+strconv.FormatInt(b.memory, 10), "--set", "telemetry.log_level=error")
	cmd := proc.Bound(ctx, append([]string{self, "serve"}, args...)...)
	cmd.Stderr = os.Stderr
	router, err := proc.Start("the router", cmd)
	if err != nil {
		return nil, err
	}
	defer router.Stop(10 * time.Second)
	if err := measure.Await(ctx, 15*time.Second, func() error { return listsModel(ctx, addresses[0]) }); err != nil {
		return nil, fmt.Errorf("the router does not list the model: %w", err)
	}
	f := &inFlightFigures{Requests: b.requests, Tokens: b.tokens, Limit: b.memory}
	defer b.send(ctx, addresses[0], engine, f)()
	if f.WithoutIDs, f.Held, err = prompts(ctx, addresses[2]); err != nil {
		return nil, err
	}
	f.Resident, f.Peak, err = proc.Memory(router.PID)
	return f, err
}

// sending bounds how many clients send at the same time.
const sending = 32

// send puts all requests in flight. The returned function ends them.
func (b benchInFlight) send(ctx context.Context, address string, engine *holdingEngine, f *inFlightFigures) (end func()) {
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 0}}
	var sent, all sync.WaitGroup
	turns := make(chan struct{}, sending)
	for n := range b.requests {
		turns <- struct{}{}
		sent.Add(1)
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions", nil)
			if err != nil {
				return
			}
			req.Body, req.ContentLength = b.body(n)
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err == nil && resp.StatusCode == http.StatusOK {
				_, err = bufio.NewReader(resp.Body).ReadString('\n') // the first token
			}
			if err == nil && resp.StatusCode == http.StatusOK {
				atomic.AddInt64(&f.Answered, 1)
			} else {
				atomic.AddInt64(&f.Refused, 1)
			}
			<-turns
			sent.Done()
			if resp != nil {
				_, _ = io.Copy(io.Discard, resp.Body) // lasts until the engine ends the answer
				_ = resp.Body.Close()
			}
		})
	}
	sent.Wait()
	return func() {
		close(engine.release)
		all.Wait()
	}
}

// body is a prompt of words that no other number has.
func (b benchInFlight) body(n int) (io.ReadCloser, int64) {
	head := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":64,"messages":[{"role":"user","content":"`, benchModel)
	const tail = `"}]}`
	word := fmt.Sprintf("%7x ", n)
	text := &repeated{word: word, left: b.tokens * fakeToken}
	return io.NopCloser(io.MultiReader(strings.NewReader(head), text, strings.NewReader(tail))), int64(len(head) + b.tokens*fakeToken + len(tail))
}

// repeated reads as a word over and over.
type repeated struct {
	word     string
	at, left int
}

// Read implements io.Reader.
func (r *repeated) Read(p []byte) (n int, err error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	for n < len(p) && r.left > 0 {
		k := copy(p[n:min(len(p), n+r.left)], r.word[r.at:])
		n, r.left, r.at = n+k, r.left-k, (r.at+k)%len(r.word)
	}
	return n, nil
}

// holdingEngine answers with one token, and ends its answers when it is released.
type holdingEngine struct {
	tokens  int
	number  atomic.Uint32
	release chan struct{}
}

// serve opens one more address.
func (e *holdingEngine) serve(ctx context.Context) (address string, stop func(), err error) {
	listen := net.ListenConfig{}
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: e}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with Close
	}()
	return l.Addr().String(), func() {
		_ = server.Close()
		<-done
	}, nil
}

// ServeHTTP implements http.Handler.
func (e *holdingEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the caller may have left
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/health":
	case "/version":
		_, _ = io.WriteString(w, `{"version":"0.17.0"}`)
	case "/v1/models":
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","max_model_len":1000000}]}`, benchModel)
	case "/tokenize":
		e.tokenize(w)
	case "/v1/chat/completions":
		e.answer(w, r)
	default:
		http.NotFound(w, r)
	}
}

// tokenize answers with ids that begin as no others do.
func (e *holdingEngine) tokenize(w io.Writer) {
	out := fmt.Appendf(nil, `{"count":%d,"max_model_len":1000000,"tokens":[%d`, e.tokens, 1000+e.number.Add(1)%100_000)
	for i := 1; i < e.tokens; i++ {
		out = strconv.AppendInt(append(out, ','), int64(1000+i%99_991), 10)
	}
	_, _ = w.Write(append(out, "]}"...)) // the caller may have left
}

func (e *holdingEngine) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := `data: {"id":"x","object":"chat.completion.chunk","model":"` + benchModel + `","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%s}]}` + "\n\n"
	_, _ = fmt.Fprintf(w, event, "null")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-e.release:
	case <-r.Context().Done():
	}
	_, _ = fmt.Fprintf(w, event+"data: [DONE]\n\n", `"stop"`)
}

func listsModel(ctx context.Context, address string) error {
	models, err := measure.Get(ctx, address, "/v1/models")
	if err == nil && !strings.Contains(models, benchModel) {
		err = errors.New("it lists other models")
	}
	return err
}

// prompts reads from a router's metrics how many prompts had no ids, and the memory of the ones in flight.
func prompts(ctx context.Context, admin string) (without, held int64, err error) {
	text, err := measure.Get(ctx, admin, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseFloat(value, 64) // comments have none
		switch {
		case strings.HasPrefix(name, "kvpilot_tokenizer_encodings_total{") && strings.Contains(name, `source="none"`):
			without += int64(n)
		case strings.HasPrefix(name, "kvpilot_tokenizer_held_bytes"):
			held += int64(n)
		}
	}
	return without, held, nil
}
