package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// fleet is the simulated replicas of one run.
type fleet struct {
	processes []*proc.Process
	urls      []string
	events    []string // of each replica
	replays   []string
}

// simLine is the line of kvpilot sim for each replica.
var simLine = regexp.MustCompile(`^(http://\S+)  model .*, events (tcp://\S+), replays (tcp://\S+)$`)

// startFleet starts the replicas, cold, and waits until they serve. Their block hashes have one seed, because
// Dynamo's index loses most events of engines that have each their own.
func startFleet(ctx context.Context, o *options, binary, dir string) (_ *fleet, err error) {
	f := &fleet{}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	per := o.perProcess
	if per <= 0 {
		per = o.replicas
	}
	for first := 0; first < o.replicas; first += per {
		n := min(per, o.replicas-first)
		p, err := start(ctx, dir, fmt.Sprintf("sim-%d", first), binary, "sim", "--count", strconv.Itoa(n),
			"--port", "0", "--events-port", "0", "--replay-port", "0", "--model", model, "--keep-alive", "5s", "--hash-seed", "1")
		if err != nil {
			return nil, err
		}
		f.processes = append(f.processes, p)
		if err := p.Until(ctx, 20*time.Second, poll, func(context.Context) error { return f.read(p, first+n) }); err != nil {
			return nil, err
		}
	}
	for n, url := range f.urls {
		if err := post(ctx, url+"/sim/speed", map[string]float64{"speed": o.factor(n)}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// read takes the replicas' addresses from the simulator's output until there are want.
func (f *fleet) read(p *proc.Process, want int) error {
	raw, err := os.ReadFile(p.Log)
	if err != nil {
		return err
	}
	known := len(f.urls)
	var urls, events, replays []string
	for _, line := range strings.Split(string(raw), "\n") {
		if m := simLine.FindStringSubmatch(line); m != nil {
			urls, events, replays = append(urls, m[1]), append(events, m[2]), append(replays, m[3])
		}
	}
	if known+len(urls) < want {
		return fmt.Errorf("%d of %d replicas serve", known+len(urls), want)
	}
	f.urls, f.events, f.replays = append(f.urls, urls...), append(f.events, events...), append(f.replays, replays...)
	return nil
}

func (f *fleet) stop() {
	for _, p := range f.processes {
		p.Stop(grace)
	}
}

func (f *fleet) cpu() time.Duration { return cpuOf(f.processes) }

// rankState is the part of a replica's GET /sim/state that matters here.
type rankState struct {
	Running       int    `json:"running"`
	Waiting       int    `json:"waiting"`
	PromptTokens  uint64 `json:"prompt_tokens"`
	OutputTokens  uint64 `json:"generation_tokens"`
	Queried       uint64 `json:"prefix_cache_queries"`
	Hits          uint64 `json:"prefix_cache_hits"`
	Preemptions   uint64 `json:"preemptions"`
	Subscriptions int    `json:"subscriptions"`
	Clock         struct {
		Steps     uint64  `json:"steps"`
		Modelled  float64 `json:"modelled_s"`
		Late      float64 `json:"late_s"`
		MostLate  float64 `json:"most_late_s"`
		LateSteps uint64  `json:"late_steps"`
		Lost      float64 `json:"lost_s"`
	} `json:"clock"`
}

// states asks all replicas.
func (f *fleet) states(ctx context.Context) ([]rankState, error) {
	list := make([]rankState, len(f.urls))
	for i, url := range f.urls {
		var s struct {
			Ranks []rankState `json:"ranks"`
		}
		if err := get(ctx, url+"/sim/state", &s); err != nil {
			return nil, err
		}
		list[i] = s.Ranks[0]
	}
	return list, nil
}

// followed waits until every replica has so many subscribers of its events.
func (f *fleet) followed(ctx context.Context, n int) error {
	list, err := f.states(ctx)
	if err != nil {
		return err
	}
	for i, s := range list {
		if s.Subscriptions < n {
			return fmt.Errorf("replica %d has %d of %d subscribers", i, s.Subscriptions, n)
		}
	}
	return nil
}

// plainClient is for everything but the measured requests.
var plainClient = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string, v any) error {
	return ask(ctx, http.MethodGet, url, "", v)
}

func post(ctx context.Context, url string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return ask(ctx, http.MethodPost, url, string(raw), nil)
}

// ask sends a request and reads a JSON answer into v, unless that is nil.
func ask(ctx context.Context, method, url, body string, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := plainClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: status %d", method, url, resp.StatusCode)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// folder makes a folder for one run's logs.
func folder(parts ...string) (string, error) {
	dir := filepath.Join(parts...)
	return dir, os.MkdirAll(dir, 0o755)
}
