package tenantbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// fleet is the router and the replicas behind it.
type fleet struct {
	address string
	client  *http.Client
	number  atomic.Uint64
	stop    func()

	mu  sync.Mutex
	err error // guarded by mu
}

func (f *fleet) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// startFleet starts the processes and waits until the router takes requests.
func startFleet(ctx context.Context, o Options, file string, log io.Writer) (*fleet, error) {
	ports, err := proc.FreeAddresses(ctx, o.Replicas+3)
	if err != nil {
		return nil, err
	}
	router, replicas := ports[:3], ports[3:]
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{address: router[0], client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4 * o.Loops}}}
	var running sync.WaitGroup
	f.stop = func() { cancel(); running.Wait(); f.client.CloseIdleConnections() }
	run := func(args ...string) error {
		cmd := proc.Bound(ctx, append([]string{o.Self}, args...)...)
		cmd.Stdout, cmd.Stderr = log, log
		p, err := proc.Start(args[0], cmd)
		if err != nil {
			return err
		}
		running.Go(func() {
			<-p.Gone()
			if err := p.Err(); err != nil && ctx.Err() == nil {
				f.mu.Lock()
				f.err = fmt.Errorf("%s: %w", args[0], err)
				f.mu.Unlock()
				cancel()
			}
		})
		return nil
	}
	serve := []string{"serve", "--config", file, "--http", router[0], "--grpc", router[1], "--admin", router[2], "--set", "telemetry.log_level=warn", "--set", "listen.drain_timeout=1s"}
	for _, address := range replicas {
		_, port, _ := net.SplitHostPort(address)
		err = errors.Join(err, run(append([]string{"sim", "--port", port, "--no-events", "--no-replay"}, o.Sim...)...))
		serve = append(serve, "--replica", "http://"+address)
	}
	for _, set := range o.Set {
		serve = append(serve, "--set", set)
	}
	if err = errors.Join(err, run(serve...)); err == nil {
		err = f.ready(ctx, o.Replicas)
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// ready waits until the router serves and has warmed every replica up.
func (f *fleet) ready(ctx context.Context, replicas int) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := errors.Join(ctx.Err(), f.failed()); err != nil {
			return err
		}
		if _, err := f.ask(ctx, "c", 100, 2); err != nil {
			continue
		}
		for range 8 * replicas { // the speed of a rank is learned from its work
			if _, err := f.ask(ctx, "c", 2000, 2); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("the router does not become ready")
}

// loop sends the next request when the last one is answered.
func (f *fleet) loop(ctx context.Context, o Options, tenant string, t *tally) {
	for ctx.Err() == nil {
		f.one(ctx, o, tenant, t)
	}
}

// now sends a request now and then, whether the last one is answered or not.
func (f *fleet) now(ctx context.Context, o Options, tenant string, t *tally) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rand.ExpFloat64() * float64(o.Every))):
			all.Go(func() { f.one(ctx, o, tenant, t) })
		}
	}
}

func (f *fleet) one(ctx context.Context, o Options, tenant string, t *tally) {
	prompt := o.Prompt/2 + rand.IntN(o.Prompt)
	if tenant == "c" {
		prompt = o.Prompt
	}
	r, err := f.ask(ctx, tenant, prompt, o.Answer)
	switch {
	case err == nil:
		t.add(r)
	case ctx.Err() == nil:
		t.fail()
	}
}

// result is one answer.
type result struct {
	began  time.Time
	first  time.Duration
	tokens int
}

func (f *fleet) ask(ctx context.Context, tenant string, prompt, answer int) (r result, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "sim", "prompt": words(f.number.Add(1), prompt), "max_tokens": answer, "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return r, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.address+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer key-of-"+tenant+"-")
	r.began = time.Now()
	resp, err := f.client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return r, errors.New("status " + strconv.Itoa(resp.StatusCode))
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		if r.first == 0 {
			r.first = time.Since(r.began)
		}
		var chunk struct {
			Usage *struct {
				Total int `json:"total_tokens"`
			} `json:"usage"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return r, err
		}
		if chunk.Usage != nil {
			r.tokens = chunk.Usage.Total
		}
	}
	if r.tokens == 0 {
		return r, errors.Join(lines.Err(), errors.New("the answer has no usage"))
	}
	return r, lines.Err()
}
