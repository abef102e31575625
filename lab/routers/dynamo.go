package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// dynamo is the selection service of NVIDIA Dynamo. Its frontend serves Dynamo's own workers only; the service
// chooses for any worker with KV events, and leaves it to its caller to tokenize and to forward. That caller
// is the small proxy here: it asks a replica for the tokens, asks the service, forwards, and reports.
type dynamo struct{ python }

func (*dynamo) follows(*subject) bool { return true }

// dynamoProxy is the first argument that makes this program that proxy.
const dynamoProxy = "dynamo-proxy"

func (d *dynamo) command(_ *subject, f *fleet, at port, _ string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{
		self, dynamoProxy, "-python", filepath.Join(d.venv, "bin", "python"), "-port", strconv.Itoa(at.http), "-service", strconv.Itoa(at.admin),
		"-replicas", strings.Join(f.urls, ","), "-events", strings.Join(f.events, ","), "-replays", strings.Join(f.replays, ","),
	}, nil
}

// selecting forwards requests as the service chooses.
type selecting struct {
	service  string
	replicas []string
	turn     atomic.Uint64 // of tokenizing
	ids      atomic.Uint64
	client   *http.Client
}

// runDynamo starts the service and serves the proxy until ctx ends.
func runDynamo(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(dynamoProxy, flag.ContinueOnError)
	interpreter, port, service := f.String("python", "", ""), f.Int("port", 0, ""), f.Int("service", 0, "")
	replicas, events, replays := f.String("replicas", "", ""), f.String("events", "", ""), f.String("replays", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, *interpreter, "-m", "dynamo.select_service", "--port", strconv.Itoa(*service))
	cmd.Env = append(os.Environ(), "DYN_LOG=warn")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- cmd.Wait() }()
	s := &selecting{
		service: fmt.Sprintf("http://127.0.0.1:%d", *service), replicas: strings.Split(*replicas, ","),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, IdleConnTimeout: 3 * time.Second, DisableCompression: true}},
	}
	if err := s.register(ctx, strings.Split(*events, ","), strings.Split(*replays, ",")); err != nil {
		return err
	}
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", *port), Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

// register registers the replicas at the service, once it answers.
func (s *selecting) register(ctx context.Context, events, replays []string) error {
	for n, replica := range s.replicas {
		worker := map[string]any{
			"worker_id": n, "model_name": model, "endpoint": replica, "kv_events_endpoints": map[string]string{"0": events[n]}, "replay_endpoint": replays[n],
			"block_size": 16, "max_num_batched_tokens": 2048, "total_kv_blocks": 40_000,
		}
		var err error
		for range 100 {
			if err = s.tell(ctx, http.MethodPost, "/workers", worker, nil); err == nil || !sleep(ctx, 100*time.Millisecond) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// call calls the service.
func (s *selecting) tell(ctx context.Context, method, path string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return s.ask(ctx, method, s.service+path, raw, answer)
}

func (s *selecting) ask(ctx context.Context, method, url string, raw []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: status %d: %.200s", method, url, resp.StatusCode, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// ServeHTTP tokenizes, has the service choose and book, forwards, and reports the first token and the end.
func (s *selecting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.serve(w, r); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		http.Error(w, err.Error(), http.StatusBadGateway) // too late when the answer has begun
	}
}

func (s *selecting) serve(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	tokenizer := s.replicas[s.turn.Add(1)%uint64(len(s.replicas))]
	var prompt struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	if err := s.ask(ctx, http.MethodPost, tokenizer+r.URL.Path+"/render", raw, &prompt); err != nil {
		return err
	}
	var limit struct {
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.Unmarshal(raw, &limit); err != nil {
		return err
	}
	id := "r" + strconv.FormatUint(s.ids.Add(1), 10)
	var chosen struct {
		Endpoint string `json:"endpoint"`
	}
	if err := s.tell(ctx, http.MethodPost, "/select_and_reserve", map[string]any{
		"model_name": model, "selection_id": id, "token_ids": prompt.TokenIDs, "expected_output_tokens": limit.MaxTokens,
	}, &chosen); err != nil {
		return err
	}
	defer func() {
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.tell(free, http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return s.forward(ctx, w, chosen.Endpoint+r.URL.Path, raw, func() {
		if err := s.tell(ctx, http.MethodPost, "/reservations/"+id+"/prefill_complete", nil, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
}

// forward passes the replica's answer on and calls first when its first bytes have gone.
func (s *selecting) forward(ctx context.Context, w http.ResponseWriter, url string, raw []byte, first func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	out := http.NewResponseController(w)
	buf := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
			if first != nil {
				first()
				first = nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
