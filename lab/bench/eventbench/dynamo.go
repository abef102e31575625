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
	"strconv"
	"strings"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
	"github.com/kvpilot/kvpilot/lab/bench/measure"
	"github.com/kvpilot/kvpilot/lab/dynamo"
)

// Dynamo is the cost of the same events to the selection service of NVIDIA Dynamo.
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

// cost is the resources that a process has used.
type cost struct {
	cpu    time.Duration
	memory int64
}

// dynamoRun starts the service, has it follow engines, and returns its cost until it was idle again and knew all blocks.
func (c Config) dynamoRun(ctx context.Context, l Load) (used cost, err error) {
	at, err := proc.FreeAddresses(ctx, 1)
	if err != nil {
		return used, err
	}
	_, port, _ := strings.Cut(at[0], ":")
	service, err := dynamo.Start(ctx, c.Dynamo, port, "error", c.Progress)
	if err != nil {
		return used, err
	}
	defer service.Kill()
	engines, err := c.Start(ctx, l)
	if err != nil {
		return used, err
	}
	defer func() {
		err = errors.Join(err, engines.In.Close())
		_, _ = io.Copy(io.Discard, engines.Out) // unread output must not block the engines
		err = errors.Join(err, engines.Wait())
	}()
	if err := registerAt(ctx, service, engines.Out); err != nil {
		return used, err
	}
	before, err := usedBy(service.PID)
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
	after, err := settled(ctx, service.PID)
	if err != nil {
		return used, err
	}
	if err := awaitLast(ctx, service, l); err != nil {
		return used, err
	}
	return cost{cpu: after.cpu - before.cpu, memory: after.memory - before.memory}, nil
}

// settled is the cost of a process when it has become idle.
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
func registerAt(ctx context.Context, service *dynamo.Service, engines *bufio.Reader) error {
	line, err := engines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the engines' sockets: %w", err)
	}
	var sockets []string
	if err := json.Unmarshal(line, &sockets); err != nil {
		return err
	}
	for n, socket := range sockets {
		worker := dynamo.Worker{ID: n, Model: dynamoModel, Endpoint: "http://127.0.0.1:1", Events: map[string]string{"0": socket}, BlockSize: blockTokens, MaxBatchedTokens: 2048, TotalBlocks: 1_000_000}
		if err := service.Register(ctx, worker); err != nil {
			return fmt.Errorf("register at Dynamo: %w", err)
		}
	}
	return nil
}

// awaitLast is an error when the service does not know the last blocks of each engine: then it lost some.
func awaitLast(ctx context.Context, service *dynamo.Service, l Load) error {
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
			if err := service.Call(ctx, http.MethodPost, "/overlap_scores", question, &answer); err != nil {
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

// usedBy reads the cost of a process.
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
