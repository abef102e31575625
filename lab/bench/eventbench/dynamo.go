package eventbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// Dynamo is what the same events cost the selection service of NVIDIA Dynamo.
type Dynamo struct {
	CPUPerBlock float64 `json:"cpu_ns_per_block"`
	// Ratio is Dynamo's processor time divided by ours.
	Ratio      float64 `json:"ratio"`
	BurstCPU   float64 `json:"burst_cpu_ns_per_block,omitempty"`
	BurstRatio float64 `json:"burst_ratio,omitempty"`
	// BurstMemory is by how much its resident memory grew, in bytes per block, its index included.
	BurstMemory float64 `json:"burst_rss_bytes_per_block,omitempty"`
}

// dynamoModel names the model of the workers.
const dynamoModel = "bench"

// dynamo measures the service with the loads that flood and burst had.
func (c Config) dynamo(ctx context.Context, r *Result) error {
	flood := Load{Engines: c.Engines, Batches: max(c.Blocks/batchBlocks/c.Engines, 1)}
	cost, err := c.dynamoRun(ctx, flood)
	if err != nil {
		return err
	}
	d := &Dynamo{CPUPerBlock: float64(cost.cpu) / float64(flood.Engines*flood.Batches*batchOps)}
	d.Ratio = d.CPUPerBlock / r.CPUPerBlock
	r.Dynamo = d
	if c.Burst == 0 {
		return nil
	}
	burst := Load{Engines: c.Engines, Batches: max(c.Burst/batchBlocks/c.Engines, 1), Fresh: true}
	if cost, err = c.dynamoRun(ctx, burst); err != nil {
		return err
	}
	blocks := float64(burst.Engines * burst.Batches * batchBlocks)
	d.BurstCPU, d.BurstMemory = float64(cost.cpu)/blocks, float64(cost.memory)/blocks
	d.BurstRatio = d.BurstCPU / r.Burst.CPUPerBlock
	return nil
}

// cost is what a process has used.
type cost struct {
	cpu    time.Duration
	memory int64
}

// dynamoRun starts the service, has it follow engines, and returns what it used until it was idle again and knew all blocks.
func (c Config) dynamoRun(ctx context.Context, l Load) (used cost, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	at, err := proc.FreeAddresses(ctx, 1)
	if err != nil {
		return used, err
	}
	_, port, _ := strings.Cut(at[0], ":")
	service := exec.CommandContext(ctx, c.Dynamo, "-m", "dynamo.select_service", "--port", port)
	service.Env = append(os.Environ(), "DYN_LOG=error")
	service.Stdout, service.Stderr = c.Progress, c.Progress
	if err := service.Start(); err != nil {
		return used, fmt.Errorf("start Dynamo's selection service: %w", err)
	}
	defer func() {
		cancel()
		_ = service.Wait() // it was killed
	}()
	engines, err := c.Start(ctx, l)
	if err != nil {
		return used, err
	}
	defer func() {
		err = errors.Join(err, engines.In.Close())
		_, _ = io.Copy(io.Discard, engines.Out) // unread output must not block the engines
		err = errors.Join(err, engines.Wait())
	}()
	if err := registerAt(ctx, at[0], engines.Out); err != nil {
		return used, err
	}
	before, err := usedBy(service.Process.Pid)
	if err != nil {
		return used, err
	}
	// It does not report how far it is. Nothing is lost all the same: its socket stops reading, as ours does.
	if _, err := fmt.Fprintf(engines.In, "go\n%d\n", 1<<40); err != nil {
		return used, err
	}
	if _, err := engines.Out.ReadBytes('\n'); err != nil {
		return used, fmt.Errorf("read the engines' report: %w", err)
	}
	after, err := settled(ctx, service.Process.Pid)
	if err != nil {
		return used, err
	}
	if err := awaitLast(ctx, at[0], l); err != nil {
		return used, err
	}
	return cost{cpu: after.cpu - before.cpu, memory: after.memory - before.memory}, nil
}

// settled is what a process has used when it has become idle.
func settled(ctx context.Context, pid int) (cost, error) {
	last, err := usedBy(pid)
	for quiet := 0; quiet < 5 && err == nil && ctx.Err() == nil; {
		time.Sleep(200 * time.Millisecond)
		var now cost
		if now, err = usedBy(pid); now.cpu-last.cpu > 20*time.Millisecond {
			quiet = 0
		} else {
			quiet++
		}
		last = now
	}
	return last, errors.Join(err, ctx.Err())
}

// registerAt reads the engines' sockets and makes each engine a worker of the service.
func registerAt(ctx context.Context, service string, engines *bufio.Reader) error {
	line, err := engines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the engines' sockets: %w", err)
	}
	var sockets []string
	if err := json.Unmarshal(line, &sockets); err != nil {
		return err
	}
	for n, socket := range sockets {
		worker := map[string]any{
			"worker_id": n, "model_name": dynamoModel, "endpoint": "http://127.0.0.1:1", "kv_events_endpoints": map[string]string{"0": socket},
			"block_size": blockTokens, "max_num_batched_tokens": 2048, "total_kv_blocks": 1_000_000,
		}
		register := func() error { return post(ctx, "http://"+service+"/workers", worker, nil) }
		if err := measure.Await(ctx, 20*time.Second, register); err != nil {
			return fmt.Errorf("register at Dynamo: %w", err)
		}
	}
	return nil
}

// awaitLast is an error when the service does not know the last blocks of each engine: then it lost some.
func awaitLast(ctx context.Context, service string, l Load) error {
	for rank := range l.Engines {
		prompt := l.lastPrompt(rank)
		known := func() error {
			var answer struct {
				Workers []struct {
					ID     int `json:"worker_id"`
					Blocks int `json:"device_blocks"`
				} `json:"workers"`
			}
			question := map[string]any{"model_name": dynamoModel, "token_ids": prompt, "block_size": blockTokens}
			if err := post(ctx, "http://"+service+"/overlap_scores", question, &answer); err != nil {
				return err
			}
			for _, w := range answer.Workers {
				if w.ID == rank && w.Blocks == len(prompt)/blockTokens {
					return nil
				}
			}
			return fmt.Errorf("dynamo does not know the last blocks of engine %d", rank)
		}
		if err := measure.Await(ctx, 5*time.Second, known); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func post(ctx context.Context, url string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: status %d: %.200s", url, resp.StatusCode, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// usedBy reads what a process has used.
func usedBy(pid int) (cost, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return cost{}, err
	}
	_, rest, _ := bytes.Cut(raw, []byte(") ")) // the name may have spaces
	fields := strings.Fields(string(rest))
	if len(fields) < 22 {
		return cost{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var numbers [3]int64
	for i, at := range []int{11, 12, 21} { // user and system ticks, resident pages
		if numbers[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return cost{}, err
		}
	}
	const tick = 10 * time.Millisecond // fixed for user space on Linux
	return cost{cpu: time.Duration(numbers[0]+numbers[1]) * tick, memory: numbers[2] * int64(os.Getpagesize())}, nil
}
