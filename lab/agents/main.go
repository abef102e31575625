// Agents measures how many calls per second agents get whose contexts fill the memory of real processes: simulated replicas with real HTTP,
// events and block caches, and a router, all on loopback.
//
//	go run ./lab/agents -kvpilot bin/kvpilot -agents 16,32,48 -seconds 60
//	go run ./lab/agents -routers vllm-router:programs,vllm-router:kv_aware,sglang-router:cache_aware -agents 32,48
//
// An agent calls with a prompt of 2,000 tokens, and 2,000 more with each further call, in 20 calls; then its place is taken by a new one. Its
// gaps are a quarter of a second.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/install"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// options are the command's arguments.
type options struct {
	kvpilot  string
	agents   []int
	duration time.Duration
	warmup   time.Duration
	replicas int
	speed    float64
	blocks   int
	answer   int
	set      []string
	cache    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("agents", flag.ContinueOnError)
	flags.StringVar(&o.kvpilot, "kvpilot", "bin/kvpilot", "the binary of router and replicas")
	list := flags.String("agents", "16,32,48", "agents at once, with commas")
	seconds := flags.Int("seconds", 60, "time of each measurement")
	warmup := flags.Int("warmup", 0, "seconds before each measurement in which the agents call already")
	flags.IntVar(&o.replicas, "replicas", 4, "simulated replicas")
	flags.Float64Var(&o.speed, "speed", 4, "their speed")
	flags.IntVar(&o.blocks, "blocks", 8000, "their KV blocks")
	flags.IntVar(&o.answer, "answer", 100, "tokens of an answer")
	routers := flags.String("routers", "kvpilot", "routers, with commas: kvpilot, vllm-router:programs, vllm-router:kv_aware, vllm-router:cache_aware, sglang-router:cache_aware; the others are installed from PyPI")
	flags.StringVar(&o.cache, "cache", ".cache/routers", "folder for the others")
	set := flags.String("set", "", "settings of kvpilot, with spaces")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, text := range strings.Split(*list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-agents %q: must be numbers above 0", *list)
		}
		o.agents = append(o.agents, n)
	}
	o.duration, o.warmup, o.set = time.Duration(*seconds)*time.Second, time.Duration(*warmup)*time.Second, strings.Fields(*set)
	known := o.routers()
	names := strings.Split(*routers, ",")
	for _, name := range names {
		if known[name] == nil {
			return fmt.Errorf("-routers %q: known are %v", name, slices.Sorted(maps.Keys(known)))
		}
	}
	fmt.Fprintln(out, "| router | agents at once | calls/s | cached share | programs finished | first token p50, mean, p99 (s) | failed |\n|---|---|---|---|---|---|---|")
	for _, name := range names {
		version, err := known[name].install(ctx)
		if errors.Is(err, install.ErrAbsent) {
			fmt.Fprintf(os.Stderr, "agents: %s: %v\n", name, err)
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "agents: %s is %s\n", name, version)
		for _, n := range o.agents {
			r, err := o.measure(ctx, known[name], n)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "| %s %s\n", name, r.row(n, o.duration))
		}
	}
	return ctx.Err()
}

// measure starts replicas and a router before them, and has n agents call.
func (o *options) measure(ctx context.Context, by router, n int) (*result, error) {
	dir, err := os.MkdirTemp("", "kvpilot-agents-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	ports, err := proc.FreePorts(ctx, 3+3*o.replicas)
	if err != nil {
		return nil, err
	}
	via := &setting{http: ports[0], grpc: ports[1], admin: ports[2], dir: dir}
	var processes []*proc.Process
	defer func() {
		for _, p := range processes {
			p.Stop(3 * time.Second)
		}
	}()
	start := func(name string, args ...string) error {
		p, err := proc.StartLogged(name, filepath.Join(dir, name+".log"), proc.Bound(ctx, args...))
		if err == nil {
			processes = append(processes, p)
		}
		return err
	}
	for i := range o.replicas {
		at := ports[3+3*i:]
		one := replica{fmt.Sprintf("http://127.0.0.1:%d", at[0]), fmt.Sprintf("tcp://127.0.0.1:%d", at[1]), fmt.Sprintf("tcp://127.0.0.1:%d", at[2])}
		via.replicas = append(via.replicas, one)
		if err := start(fmt.Sprint("sim-", i), o.kvpilot, "sim", "--port", strconv.Itoa(at[0]), "--events-port", strconv.Itoa(at[1]), "--replay-port", strconv.Itoa(at[2]),
			"--speed", strconv.FormatFloat(o.speed, 'g', -1, 64), "--blocks", strconv.Itoa(o.blocks), "--max-model-len", strconv.Itoa(callsOfAgent*growth+o.answer+1000)); err != nil {
			return nil, err
		}
		up := func(ctx context.Context) error { _, err := ask(ctx, http.MethodGet, one.url+"/health", ""); return err }
		if err := processes[i].Until(ctx, 30*time.Second, 100*time.Millisecond, up); err != nil {
			return nil, err
		}
	}
	args, err := by.command(via)
	if err != nil {
		return nil, err
	}
	if err := start("router", args...); err != nil {
		return nil, err
	}
	if err := processes[len(processes)-1].Until(ctx, 60*time.Second, 100*time.Millisecond, func(ctx context.Context) error { return by.ready(ctx, via) }); err != nil {
		return nil, err
	}
	r := &result{from: time.Now().Add(o.warmup)}
	until, end := context.WithTimeout(ctx, o.warmup+o.duration)
	defer end()
	var all sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	for i := range n {
		all.Go(func() {
			a := &agent{client: client, by: by, url: fmt.Sprintf("http://127.0.0.1:%d", via.http), answer: o.answer, dice: rand.New(rand.NewPCG(uint64(i), 1)), into: r}
			for session := 0; until.Err() == nil; session++ {
				a.program(until, fmt.Sprintf("agent-%d-%d", i, session))
			}
		})
	}
	all.Wait()
	return r, ctx.Err()
}

const (
	callsOfAgent = 20
	growth       = 2000 // tokens of the first prompt, and of each call's addition
	gap          = 250 * time.Millisecond
	retryAfter   = time.Second
)

// agent is one of the agents at once.
type agent struct {
	client *http.Client
	by     router
	url    string
	answer int
	dice   *rand.Rand
	into   *result
}

// program makes one agent's calls, one after the other.
func (a *agent) program(ctx context.Context, session string) {
	var prompt []int
	for call := range callsOfAgent {
		for range growth {
			prompt = append(prompt, 10+a.dice.IntN(30_000))
		}
		for {
			err := a.call(ctx, session, prompt, call == callsOfAgent-1)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				break
			}
			a.into.fail(err)
			if !sleep.For(ctx, retryAfter) {
				return
			}
		}
		if call == callsOfAgent-1 {
			a.into.finish()
		} else if !sleep.For(ctx, gap) {
			return
		}
	}
}

// usage is an engine's report about an answer.
type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// call sends one request and reads its stream to the end.
func (a *agent) call(ctx context.Context, session string, prompt []int, last bool) error {
	said := map[string]any{
		"model": model, "prompt": prompt, "max_tokens": a.answer, "ignore_eos": true, "stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	a.by.mark(said, session)
	body, err := json.Marshal(said)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", session)
	if last {
		req.Header.Set("X-Kvpilot-Session-Final", "true")
	}
	began := time.Now()
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // the status says enough
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	var first time.Duration
	var used usage
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		if first == 0 {
			first = time.Since(began)
		}
		var chunk struct {
			Usage *usage `json:"usage"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return err
		}
		if chunk.Usage != nil {
			used = *chunk.Usage
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if used.Prompt == 0 {
		return errors.New("the stream has no usage")
	}
	a.into.add(used, first)
	return nil
}
