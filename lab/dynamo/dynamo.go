// Package dynamo starts and calls the selection service of NVIDIA Dynamo. It chooses for any worker with KV events, and
// leaves it to its caller to tokenize and to forward.
package dynamo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// Service is a running selection service.
type Service struct {
	*proc.Process
	url    string
	client *http.Client
}

// Worker is an engine of the service.
type Worker struct {
	ID       int    `json:"worker_id"`
	Model    string `json:"model_name"`
	Endpoint string `json:"endpoint"`
	// Events is where each rank publishes; Replay is empty for an engine without replays.
	Events           map[string]string `json:"kv_events_endpoints"`
	Replay           string            `json:"replay_endpoint,omitempty"`
	BlockSize        int               `json:"block_size"`
	MaxBatchedTokens int               `json:"max_num_batched_tokens"`
	TotalBlocks      int               `json:"total_kv_blocks"`
}

// Start starts the service with a Python interpreter that has the package ai-dynamo-runtime. The end of ctx ends it.
func Start(ctx context.Context, interpreter, port, log string, out io.Writer) (*Service, error) {
	cmd := proc.Bound(ctx, interpreter, "-m", "dynamo.select_service", "--port", port)
	cmd.Env = append(os.Environ(), "DYN_LOG="+log)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := proc.Start("Dynamo's selection service", cmd)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, IdleConnTimeout: 3 * time.Second, DisableCompression: true}
	return &Service{Process: p, url: "http://127.0.0.1:" + port, client: &http.Client{Transport: transport}}, nil
}

// Register adds a worker, once the service answers.
func (s *Service) Register(ctx context.Context, w Worker) error {
	return s.Until(ctx, 20*time.Second, 100*time.Millisecond, func(ctx context.Context) error {
		return s.Call(ctx, http.MethodPost, "/workers", w, nil)
	})
}

// Call sends body as JSON to the service and reads the answer, unless it is nil.
func (s *Service) Call(ctx context.Context, method, path string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return s.Ask(ctx, method, s.url+path, raw, answer)
}

// Ask sends JSON to any address, as Call does.
func (s *Service) Ask(ctx context.Context, method, url string, raw []byte, answer any) error {
	resp, err := s.Open(ctx, method, url, raw)
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

// Open sends JSON; the caller reads and closes the answer.
func (s *Service) Open(ctx context.Context, method, url string, raw []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return s.client.Do(req)
}
