package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Config is a load.
type Config struct {
	// URL is the endpoint's base URL; Model what to ask for.
	URL, Model string
	// Others are base URLs of further routers of the same fleet: each request goes to the next one, URL's included.
	Others []string
	// Header is sent with each request.
	Header http.Header
	// Conversations are played, each of Turns turns, Concurrency of them at once.
	Conversations, Turns, Concurrency int
	// Tenants share a system prompt of SystemWords words among their conversations.
	Tenants, SystemWords int
	// UserWords is the length of the user's text in a turn; MaxTokens bounds each answer.
	UserWords, MaxTokens int
	// Think is the pause between an answer and the next turn.
	Think time.Duration
	// Seed makes the text.
	Seed uint64
	// Timeout bounds one request; zero: one minute.
	Timeout time.Duration
}

// Requests is how many requests the load makes.
func (c Config) Requests() int { return c.Conversations * c.Turns }

// Result is one request.
type Result struct {
	// Replica is the replica that answered, as the router reports it.
	Replica string
	// TTFT is the time to the first token, Total to the last byte.
	TTFT, Total                              time.Duration
	PromptTokens, CachedTokens, OutputTokens int
	Err                                      error
}

// Run plays the load and calls on (from one goroutine at a time) with each result.
func Run(ctx context.Context, c Config, on func(Result)) error {
	transport := &http.Transport{MaxIdleConnsPerHost: c.Concurrency, IdleConnTimeout: 4 * time.Second}
	defer transport.CloseIdleConnections()
	p := &player{Config: c, client: &http.Client{Transport: transport}}
	if p.Timeout == 0 {
		p.Timeout = time.Minute
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range c.Concurrency {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= c.Conversations || ctx.Err() != nil {
					return
				}
				p.converse(ctx, n, func(r Result) {
					mu.Lock()
					defer mu.Unlock()
					on(r)
				})
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

type player struct {
	Config
	client *http.Client
	asked  atomic.Int64
}

// url is where the next request goes.
func (p *player) url() string {
	n := int(p.asked.Add(1)-1) % (1 + len(p.Others))
	if n == 0 {
		return p.URL
	}
	return p.Others[n-1]
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// converse plays one conversation; a failed turn ends it.
func (p *player) converse(ctx context.Context, n int, on func(Result)) {
	text := newText(p.Seed, uint64(n))
	system := newText(p.Seed, 1<<32+uint64(n%max(1, p.Tenants))).words(p.SystemWords)
	messages := []message{{"system", system}}
	for turn := range p.Turns {
		messages = append(messages, message{"user", text.words(p.UserWords)})
		answer, r := p.ask(ctx, messages, fmt.Sprintf("load-%d-%d", p.Seed, n))
		if ctx.Err() != nil {
			return
		}
		on(r)
		if r.Err != nil {
			return
		}
		messages = append(messages, message{"assistant", answer})
		if p.Think > 0 && turn < p.Turns-1 {
			select {
			case <-time.After(p.Think):
			case <-ctx.Done():
				return
			}
		}
	}
}

// ask sends one turn and reads its stream.
func (p *player) ask(ctx context.Context, messages []message, session string) (answer string, r Result) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{
		"model": p.Model, "messages": messages, "max_tokens": p.MaxTokens, "temperature": 0, "stream": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		r.Err = err
		return "", r
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		r.Err = err
		return "", r
	}
	for k, v := range p.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", session)
	began := time.Now()
	resp, err := p.client.Do(req)
	if err != nil {
		r.Err = err
		return "", r
	}
	defer resp.Body.Close()
	r.Replica = resp.Header.Get("X-Kvpilot-Replica")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048)) // for the message only
		r.Err = fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
		return "", r
	}
	answer, r.Err = readStream(resp.Body, began, &r)
	r.Total = time.Since(began)
	return answer, r
}

// chunk is the measured part of a stream's event.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

var errNoEnd = errors.New("the stream ended without [DONE]")

func readStream(body io.Reader, began time.Time, r *Result) (string, error) {
	var answer []byte
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return string(answer), nil
		}
		if r.TTFT == 0 {
			r.TTFT = time.Since(began)
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return "", fmt.Errorf("chunk: %w", err)
		}
		if len(c.Error) > 0 {
			return "", fmt.Errorf("the stream failed: %s", c.Error)
		}
		for _, ch := range c.Choices {
			answer = append(answer, ch.Delta.Content...)
		}
		if c.Usage != nil {
			r.PromptTokens, r.OutputTokens = c.Usage.PromptTokens, c.Usage.CompletionTokens
			if d := c.Usage.Details; d != nil {
				r.CachedTokens = d.CachedTokens
			}
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	return "", errNoEnd
}
