package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// outcome is one request as its client saw it.
type outcome struct {
	sent bool
	err  string
	// late is how much later than planned it was sent; waited is how long it stood back for the answer
	// that is part of its prompt.
	late, waited time.Duration
	// ttft, last and whole are the times to the first token, the last one and the end. Times that are not known because
	// the run ended are zero; whole is then how long it had lasted.
	ttft, last, whole      time.Duration
	done                   bool
	prompt, output, cached int
}

// player plays a trace once.
type player struct {
	trace   *trace
	times   []float64
	api     string
	session bool
	// unstreamed has answers come in one piece.
	unstreamed bool
	urls       []string // of the routers, in turn
	// limit is when requests in flight are given up.
	limit time.Duration

	client   *http.Client
	began    time.Time
	outcomes []outcome
	talks    []conversation
}

// conversation is the part of an earlier call that a later one needs.
type conversation struct {
	over     chan struct{} // closed when the call has ended
	wanted   bool
	messages []message
	answer   []byte
}

// play sends every request at its time and returns their outcomes.
func (p *player) play(ctx context.Context) []outcome {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, IdleConnTimeout: 3 * time.Second, DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 16 << 10}
	defer transport.CloseIdleConnections()
	p.client = &http.Client{Transport: transport}
	n := len(p.trace.Calls)
	p.outcomes, p.talks = make([]outcome, n), make([]conversation, n)
	for i := range p.talks {
		p.talks[i].over = make(chan struct{})
		if before := p.trace.After[i]; before >= 0 {
			p.talks[before].wanted = true
		}
	}
	var wait sync.WaitGroup
	p.began = time.Now()
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	if !p.trace.Closed { // calls that a coarse clock puts at one moment are not in order
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.times[a], p.times[b]) })
	}
	for _, i := range order {
		if !p.trace.Closed && !sleep.For(ctx, time.Until(p.at(i))-ahead) {
			break
		}
		wait.Go(func() {
			defer close(p.talks[i].over)
			p.call(ctx, i)
		})
	}
	wait.Wait()
	return p.outcomes
}

// ahead is how long before its time a request is made ready.
const ahead = 50 * time.Millisecond

func (p *player) at(i int) time.Time {
	return p.began.Add(time.Duration(p.times[i] * float64(time.Second)))
}

// call plays one request: it waits for the call that it follows and for its time, sends it and reads the answer.
func (p *player) call(ctx context.Context, i int) {
	o, t := &p.outcomes[i], &p.talks[i]
	due, ok := p.due(ctx, i)
	if !ok {
		return
	}
	var before []message
	var answer []byte
	if b := p.trace.After[i]; b >= 0 {
		if !p.outcomes[b].done {
			return // a conversation whose answer failed ends
		}
		before, answer = p.talks[b].messages, p.talks[b].answer
	}
	messages := p.trace.prompt(i, before, answer)
	if t.wanted {
		t.messages = messages
	}
	raw := body(p.api, messages, p.trace.Calls[i].Out, !p.unstreamed)
	if !sleep.For(ctx, time.Until(due)) {
		return
	}
	o.sent, o.late = true, time.Since(due)
	begin := time.Now()
	err := p.ask(ctx, i, raw, begin)
	o.whole = time.Since(begin)
	switch {
	case err == nil:
		o.done = true
	case ctx.Err() == nil:
		o.err = err.Error()
	}
}

// due waits until a call may be made ready and returns its time; false: the run ended before.
func (p *player) due(ctx context.Context, i int) (time.Time, bool) {
	at := p.at(i)
	follows := p.trace.Calls[i].Prev
	if !p.trace.Closed {
		follows = p.trace.After[i]
	}
	if follows < 0 {
		return at, sleep.For(ctx, time.Until(at)-ahead)
	}
	select {
	case <-p.talks[follows].over:
	case <-ctx.Done():
		return at, false
	}
	if p.trace.Closed {
		at = time.Now().Add(time.Duration(p.times[i] * float64(time.Second)))
		return at, sleep.For(ctx, time.Until(at)-ahead)
	}
	if next := time.Now().Add(ahead); next.After(at) { // not before its prompt is made
		p.outcomes[i].waited = next.Sub(at)
		at = next
	}
	return at, true
}

// ask sends the request and reads its stream.
func (p *player) ask(ctx context.Context, i int, raw []byte, begin time.Time) error {
	path := "/v1/chat/completions"
	if p.api != "chat" {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.urls[i%len(p.urls)]+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if p.session {
		req.Header.Set("X-Session-Id", "session-"+strconv.Itoa(p.trace.Calls[i].Session))
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // for the message only
		return fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	if p.unstreamed {
		return p.readWhole(i, resp.Body, begin)
	}
	return p.read(i, resp.Body, begin)
}

// readWhole reads an answer in one piece.
func (p *player) readWhole(i int, answer io.Reader, begin time.Time) error {
	o, t := &p.outcomes[i], &p.talks[i]
	raw, err := io.ReadAll(answer)
	if err != nil {
		return err
	}
	var a struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("the answer: %w", err)
	}
	if len(a.Choices) == 0 || a.Choices[0].Text+a.Choices[0].Message.Content == "" {
		return errors.New("an answer without a token")
	}
	o.ttft = time.Since(begin)
	o.last = o.ttft
	if t.wanted {
		t.answer = append(t.answer, a.Choices[0].Text+a.Choices[0].Message.Content...)
	}
	o.usage(raw)
	return nil
}

var (
	dataMark  = []byte("data:")
	doneMark  = []byte("[DONE]")
	usageMark = []byte(`"usage":{`)
	errorMark = []byte(`{"error"`)
)

// read reads the events of a stream.
func (p *player) read(i int, stream io.Reader, begin time.Time) error {
	o, t := &p.outcomes[i], &p.talks[i]
	mark := []byte(`"content":"`)
	if p.api != "chat" {
		mark = []byte(`"text":"`)
	}
	buf := make([]byte, 0, 16<<10)
	done := false
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, cap(buf))...)[:len(buf)]
		}
		n, err := stream.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		now := time.Since(begin)
		rest := buf
		for {
			line, after, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			rest = after
			line, ok = bytes.CutPrefix(line, dataMark)
			if !ok {
				continue
			}
			line = bytes.TrimSpace(line)
			if bytes.Equal(line, doneMark) {
				done = true
				continue
			}
			if bytes.HasPrefix(line, errorMark) {
				return fmt.Errorf("error in the stream: %.200s", line)
			}
			p.event(o, t, line, mark, now)
		}
		buf = buf[:copy(buf, rest)]
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err
		case !done:
			return errors.New("the stream ended before its end mark")
		case o.ttft == 0:
			return errors.New("an answer without a token")
		default:
			return nil
		}
	}
}

// event notes the content of a chunk: text, or the usage at the end.
func (p *player) event(o *outcome, t *conversation, line, mark []byte, now time.Duration) {
	if at := bytes.Index(line, mark); at >= 0 {
		if text := line[at+len(mark):]; len(text) > 0 && text[0] != '"' {
			if o.ttft == 0 {
				o.ttft = now
			}
			o.last = now
			if t.wanted {
				t.answer = append(t.answer, textOf(text)...)
			}
		}
	}
	if bytes.Contains(line, usageMark) {
		o.usage(line)
	}
}

// usage notes the token counts of an answer.
func (o *outcome) usage(text []byte) {
	var u struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(text, &u) == nil && u.Usage.Prompt > 0 {
		o.prompt, o.output, o.cached = u.Usage.Prompt, u.Usage.Output, u.Usage.Details.Cached
	}
}

// textOf reads a JSON string whose opening quote is gone.
func textOf(b []byte) []byte {
	end := 0
	for end < len(b) && b[end] != '"' {
		if b[end] == '\\' {
			end++
		}
		end++
	}
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end]
	}
	var s string
	if err := json.Unmarshal(append(append([]byte{'"'}, b[:end]...), '"'), &s); err != nil {
		return b[:end]
	}
	return []byte(s)
}
