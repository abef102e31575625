package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// behind starts a router before two replicas that c stands in front of; it cuts nothing yet.
func (r *disturbances) behind(ctx context.Context, c *cutter) (url string, stop func(), err error) {
	c.left.Store(whole)
	front := make([]string, 2)
	for i := range front {
		if front[i], err = listenBefore(ctx, strconv.Itoa(r.engines[i%len(r.engines)].http), c.serve); err != nil {
			return "", nil, err
		}
	}
	return r.resuming(ctx, front)
}

// checkResume: a stream is resumed on another replica wherever the connection to its own is cut, and the
// client has the text that the engine writes undisturbed.
func (r *disturbances) checkResume(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var c cutter
	url, stop, err := r.behind(ctx, &c)
	if err != nil {
		return "", err
	}
	defer stop()
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	cuts, equal, lost := 0, 0, 0
	for n := range 5 {
		path, body := "/v1/completions", object{"prompt": fmt.Sprintf("Story %d about a router", n)}
		if n%2 == 0 {
			path, body = "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": fmt.Sprintf("Question %d: Größe 你好?", n)}}}
		}
		body["model"], body["stream"], body["temperature"], body["max_tokens"] = "tiny", true, 0, 24
		body["stream_options"] = object{"include_usage": true}
		if n == 3 {
			body["logprobs"], body["allowed_token_ids"] = 2, letters
		}
		want, err := hear(ctx, r.engines[0].url()+path, body)
		if err != nil || !want.done {
			return "", fmt.Errorf("undisturbed: %+v, %w", want, err)
		}
		for at := 500; at < want.size; at += 163 {
			c.left.Store(int64(at))
			got, err := hear(ctx, url+path, body)
			if err != nil {
				return "", err
			}
			cuts++
			switch {
			case !got.done || got.failed:
				lost++
			case got.ids != 1 || got.usage != want.usage || got.finish != want.finish:
				return "", fmt.Errorf("cut after %d bytes, the client has %+v, want %+v", at, got, want)
			case got.text == want.text && got.tokens != want.tokens:
				return "", fmt.Errorf("cut after %d bytes, the client has the tokens\n%s\nwant\n%s", at, got.tokens, want.tokens)
			case got.text == want.text:
				equal++
			}
		}
	}
	// The tiny model writes half characters more often than whole ones, and a near tie may fall the other way.
	if other := cuts - equal - lost; cuts == 0 || lost > cuts/2 || other > cuts/10 {
		return "", fmt.Errorf("of %d cuts %d gave the same text, %d another one, and %d ended the stream", cuts, equal, other, lost)
	}
	return fmt.Sprintf("%d cuts: %d streams resumed, %d of them with the very text of the undisturbed ones; %d ended, inside a character", cuts, cuts-lost, equal, lost), nil
}

// heard is a client's reading of a stream.
type heard struct {
	text, finish, usage string
	stop                string // stop_reason
	tokens              string // with their offsets, of completions with logprobs
	ids, size           int
	done, failed        bool
}

// hear asks for a stream and reads it whole.
func hear(ctx context.Context, url string, body object, header ...string) (heard, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return heard{}, err
	}
	resp, err := open(ctx, "POST", url, raw, header...)
	if err != nil {
		return heard{}, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return heard{}, err
	}
	h := heard{size: len(all)}
	ids := map[string]bool{}
	for line := range strings.Lines(string(all)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			h.done = true
			continue
		}
		var v struct {
			ID      string
			Choices []struct {
				Text   string
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
				Stop   any    `json:"stop_reason"`
				// Logprobs are the log probabilities of completions.
				Logprobs struct {
					Offsets []int `json:"text_offset"`
					Tokens  []string
				}
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
			Error any
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			return h, fmt.Errorf("%s: %w", data, err)
		}
		if v.Error != nil {
			h.failed = true
			continue
		}
		ids[v.ID] = true
		for _, c := range v.Choices {
			h.text += c.Text + c.Delta.Content
			h.finish += c.Finish
			for i, token := range c.Logprobs.Tokens {
				h.tokens += fmt.Sprintf("%d %q\n", c.Logprobs.Offsets[i], token)
			}
			if c.Stop != nil {
				h.stop = fmt.Sprint(c.Stop)
			}
		}
		if v.Usage != nil {
			h.usage = fmt.Sprint(*v.Usage)
		}
	}
	h.ids = len(ids)
	return h, nil
}

// resuming starts another router, which resumes streams, in front of two addresses.
func (r *disturbances) resuming(ctx context.Context, front []string) (url string, stop func(), err error) {
	p, err := r.another(ctx, "resume", front, "router: {resume_streams: 1}\nchooser: {policy: round-robin}\nupstream: {breaker: {failures: 0, min_requests: 1000000}}\n")
	if err != nil {
		return "", nil, err
	}
	return p.url(), p.stop, nil
}

// another starts one more router in front of the addresses, with more settings; name is the name of its files.
func (r *release) another(ctx context.Context, name string, front []string, settings string) (*routerProcess, error) {
	at, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	p := &routerProcess{http: at[0], grpc: at[1], admin: at[2]}
	var text strings.Builder
	fmt.Fprintf(&text, "listen: {http: %q, grpc: %q, admin: %q}\nregistry:\n  probe: {interval: 1s, up: 1}\n  replicas:\n", p.http, p.grpc, p.admin)
	for i, address := range front {
		fmt.Fprintf(&text, "    - {id: engine-%d, url: \"http://%s\"}\n", i, address)
	}
	file := filepath.Join(r.logs, name+".yaml")
	if err := os.WriteFile(file, []byte(text.String()+settings), 0o644); err != nil {
		return nil, err
	}
	cmd := proc.Command(ctx, r.binary, "serve", "--config", file)
	if p.process, err = proc.StartLogged("kvpilot", filepath.Join(r.logs, name+".log"), cmd); err != nil {
		return nil, err
	}
	url := p.url()
	if err := p.process.Until(ctx, time.Minute, 200*time.Millisecond, func(ctx context.Context) error {
		code, body, err := call(ctx, "GET", url+"/kvpilot/v1/replicas", nil)
		if n := strings.Count(string(body), "REPLICA_STATE_READY"); err == nil && (code != 200 || n != len(front)) {
			err = fmt.Errorf("status %d, %d of %d replicas are ready", code, n, len(front))
		}
		return err
	}); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// whole lets answers through.
const whole = 1 << 40

// cutter stands before engines and cuts the answer to one streamed request after so many bytes.
type cutter struct {
	left atomic.Int64
}

// listenBefore serves an address of its own before an engine's port until ctx ends, each connection with serve.
func listenBefore(ctx context.Context, port string, serve func(ctx context.Context, from net.Conn, port string)) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serve(ctx, conn, port)
		}
	}()
	return ln.Addr().String(), nil
}

// serve passes bytes both ways.
func (c *cutter) serve(ctx context.Context, from net.Conn, port string) {
	defer from.Close()
	to, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return
	}
	defer to.Close()
	var limit atomic.Int64
	limit.Store(whole)
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if strings.Contains(string(b[:n]), "completions HTTP/1.1") {
				limit.Store(c.left.Swap(whole))
			}
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				_ = to.Close() // ends the other half
				return
			}
		}
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := to.Read(b)
		n = int(min(int64(n), limit.Load()))
		limit.Add(int64(-n))
		if _, werr := from.Write(b[:n]); err != nil || werr != nil || limit.Load() <= 0 {
			return
		}
	}
}
