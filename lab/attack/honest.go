package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// result is one honest request.
type result struct {
	tenant, replica string
	at              time.Time
	first, took     time.Duration // to the first event and to the end
	tokens          int           // events with text
	fault           string        // empty: a whole, right answer
}

// honest are three tenants: a streams over REST, b does not stream and makes a connection for each request, c streams over gRPC. Each sends at a constant rate, whatever the
// answers do, and spreads its requests over the routers.
type honest struct {
	routers []*router
	rate    int
	client  *http.Client
	fresh   *http.Client // keeps no connection
	conns   []*grpc.ClientConn
	next    int
}

const (
	answerTokens = 24
	patience     = 30 * time.Second
)

func newHonest(routers []*router, rate int) *honest {
	h := &honest{routers: routers, rate: rate, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, fresh: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, r := range routers {
		// NewClient fails for bad targets only.
		if conn, err := grpc.NewClient("passthrough:///"+r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials())); err == nil {
			h.conns = append(h.conns, conn)
		}
	}
	return h
}

// play sends the tenants' requests for so long and returns their results.
func (h *honest) play(ctx context.Context, _ *world, during time.Duration) []result {
	var mu sync.Mutex
	var all []result
	var wait sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(h.rate))
	defer tick.Stop()
	for end := time.Now().Add(during); time.Now().Before(end) && ctx.Err() == nil; {
		for _, tenant := range []string{"a", "b", "c"} {
			n := h.next
			h.next++
			wait.Go(func() {
				r := h.ask(ctx, tenant, n)
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	wait.Wait()
	return all
}

// body is a chat of one of eight documents and a question of its own.
func body(tenant string, n int, stream bool) string {
	document := strings.Repeat(fmt.Sprintf("tenant %s keeps document %d for its questions. ", tenant, n%8), 40)
	text, err := json.Marshal(map[string]any{
		"model": "sim", "stream": stream, "max_tokens": answerTokens, "ignore_eos": true,
		"messages": []map[string]string{{"role": "system", "content": document}, {"role": "user", "content": fmt.Sprintf("question %d", n)}},
	})
	if err != nil {
		panic(err) // a map of texts
	}
	return string(text)
}

func (h *honest) ask(ctx context.Context, tenant string, n int) result {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := result{tenant: tenant, at: time.Now()}
	var err error
	switch tenant {
	case "a":
		err = h.rest(ctx, &r, n, true)
	case "b":
		err = h.rest(ctx, &r, n, false)
	default:
		err = h.call(ctx, &r, n)
	}
	r.took = time.Since(r.at)
	if err != nil {
		r.fault = fmt.Sprintf("%.300s", err.Error())
	}
	return r
}

func (h *honest) rest(ctx context.Context, r *result, n int, stream bool) error {
	to := h.routers[n%len(h.routers)]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+to.http+"/v1/chat/completions", strings.NewReader(body(r.tenant, n, stream)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer key-of-tenant-"+r.tenant)
	req.Header.Set("Content-Type", "application/json")
	client := h.client
	if !stream {
		client = h.fresh
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r.replica = resp.Header.Get("X-Kvpilot-Replica")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // the status is enough
		return fmt.Errorf("%s from %q: %s", resp.Status, r.replica, text)
	}
	if stream {
		return r.events(resp.Body)
	}
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Completion int `json:"completion_tokens"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	r.tokens = answer.Usage.Completion
	if len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" {
		return errors.New("an empty answer")
	}
	return nil
}

// events reads a stream to its end.
func (r *result) events(from io.Reader) error {
	whole := false
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			whole = true
		case strings.Contains(data, `"error"`):
			return fmt.Errorf("the stream of %q has an error: %s", r.replica, data)
		case strings.Contains(data, `"content":"`) && !strings.Contains(data, `"content":""`):
			if r.tokens == 0 {
				r.first = time.Since(r.at)
			}
			r.tokens++
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !whole || r.tokens == 0 {
		return fmt.Errorf("a stream of %q with %d tokens, whole: %v", r.replica, r.tokens, whole)
	}
	return nil
}

func (h *honest) call(ctx context.Context, r *result, n int) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer key-of-tenant-"+r.tenant)
	stream, err := kvpilotv1.NewInferenceServiceClient(h.conns[n%len(h.conns)]).ChatCompletions(ctx, &httpbody.HttpBody{ContentType: "application/json", Data: []byte(body(r.tenant, n, true))})
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	go func() {
		for {
			part, err := stream.Recv()
			if err != nil {
				write.CloseWithError(err) // io.EOF at the end
				return
			}
			if _, err := write.Write(part.GetData()); err != nil {
				return
			}
		}
	}()
	defer func() { _ = read.Close() }() // a pipe closes
	if head, err := stream.Header(); err == nil && len(head.Get("x-kvpilot-replica")) == 1 {
		r.replica = head.Get("x-kvpilot-replica")[0]
	}
	return r.events(read)
}
