package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/lab/dynamo"
)

// dynamoRouter is Dynamo's selection service: its frontend serves Dynamo's own workers only. The caller of the
// service is the small proxy here: it asks a replica for the tokens, asks the service, forwards, and reports.
type dynamoRouter struct{ python }

func (*dynamoRouter) follows(*subject) bool { return true }

// dynamoProxy is the first argument that makes this program that proxy.
const dynamoProxy = "dynamo-proxy"

func (d *dynamoRouter) command(_ *subject, f *fleet, at port, _ string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{
		self, dynamoProxy, "-python", d.venv.Program("python"), "-port", strconv.Itoa(at.http), "-service", strconv.Itoa(at.admin),
		"-replicas", strings.Join(f.urls, ","), "-events", strings.Join(f.events, ","), "-replays", strings.Join(f.replays, ","),
	}, nil
}

// selecting forwards requests as the service chooses.
type selecting struct {
	*dynamo.Service
	replicas []string
	turn     atomic.Uint64 // of tokenizing
	ids      atomic.Uint64
}

// runDynamo starts the service and serves the proxy until ctx ends.
func runDynamo(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(dynamoProxy, flag.ContinueOnError)
	interpreter, port, service := f.String("python", "", ""), f.Int("port", 0, ""), f.String("service", "", "")
	replicas, events, replays := f.String("replicas", "", ""), f.String("events", "", ""), f.String("replays", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	own, err := dynamo.Start(ctx, *interpreter, *service, "warn", os.Stderr)
	if err != nil {
		return err
	}
	defer own.Stop(grace)
	s := &selecting{Service: own, replicas: strings.Split(*replicas, ",")}
	publish, replay := strings.Split(*events, ","), strings.Split(*replays, ",")
	for n, replica := range s.replicas {
		worker := dynamo.Worker{ID: n, Model: model, Endpoint: replica, Events: map[string]string{"0": publish[n]}, Replay: replay[n], BlockSize: 16, MaxBatchedTokens: 2048, TotalBlocks: 40_000}
		if err := s.Register(ctx, worker); err != nil {
			return err
		}
	}
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", *port), Handler: s, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-own.Gone():
		return own.Err()
	case <-ctx.Done():
		return server.Close()
	}
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
	if err := s.Ask(ctx, http.MethodPost, tokenizer+r.URL.Path+"/render", raw, &prompt); err != nil {
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
	if err := s.Call(ctx, http.MethodPost, "/select_and_reserve", map[string]any{
		"model_name": model, "selection_id": id, "token_ids": prompt.TokenIDs, "expected_output_tokens": limit.MaxTokens,
	}, &chosen); err != nil {
		return err
	}
	defer func() {
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.Call(free, http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return s.forward(ctx, w, chosen.Endpoint+r.URL.Path, raw, func() {
		if err := s.Call(ctx, http.MethodPost, "/reservations/"+id+"/prefill_complete", nil, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
}

// forward passes the replica's answer on and calls first when its first bytes have gone.
func (s *selecting) forward(ctx context.Context, w http.ResponseWriter, url string, raw []byte, first func()) error {
	resp, err := s.Open(ctx, http.MethodPost, url, raw)
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
