package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
)

// modelFolder is the model's in the cache, contextLength the engines' longest sequence in tokens.
const (
	modelFolder   = "tiny"
	contextLength = 4096
)

// serving is how the replicas are started.
type serving struct {
	seqs     int    // sequences that a replica runs at once
	comments string // the interval in seconds of the replicas' comments in streams; empty for none
	tests    string // vLLM's own, to run instead of the checks; empty for none
	plain    bool   // without parsers
	// connector is the replicas' KV connector, by the name of kvpilot's label; empty for none.
	connector string
}

// fleet is the replicas, and the collector that they send spans to.
type fleet struct {
	serving
	vllm     *release
	replicas int
	keep     bool
	engines  []*engine
	spans    *collector
}

// engine is one real vLLM replica.
type engine struct {
	serving
	vllm                 *release
	spans                string
	id                   string
	adapter              bool // serve the LoRA adapter as well
	http, events, replay int
	// side is the port at which other engines meet the connector, role the part that the router lets the replica take.
	side    int
	role    string
	process *proc.Process // nil: not running
}

// blockSize is the replicas' block size.
const blockSize = 32

// startFleet starts the replicas and waits until they serve.
func (f *fleet) startFleet(ctx context.Context) error {
	kept := f.kept().Engines
	for i := range f.replicas {
		e := &engine{serving: f.serving, vllm: f.vllm, spans: f.spans.url(), id: fmt.Sprintf("vllm-%d", i)}
		e.adapter = f.tests == "" && f.connector == "" // an engine with adapters crashes on prompt_logprobs together with another request
		if f.connector != "" {
			e.role = roles()[i]
		}
		if i < len(kept) {
			f.engines = append(f.engines, e)
			e.adopt(kept[i])
			if err := e.wait(ctx, startWait); err != nil {
				return err
			}
			continue
		}
		f.engines = append(f.engines, e)
		if err := e.launchNew(ctx); err != nil {
			return err
		}
		if f.connector != "" { // its engines are small
			continue
		}
		// One after the other: two starts at once take longer on few cores.
		if err := e.wait(ctx, startWait); err != nil {
			return err
		}
		if err := f.remember(); err != nil {
			return err
		}
	}
	for _, e := range f.engines {
		if err := e.wait(ctx, startWait); err != nil {
			return err
		}
	}
	return f.remember()
}

// launchNew starts the replica on free ports.
func (e *engine) launchNew(ctx context.Context) error {
	ports, err := proc.FreePorts(ctx, 4)
	if err != nil {
		return err
	}
	e.http, e.events, e.replay, e.side = ports[0], ports[1], ports[2], ports[3]
	return e.start(ctx)
}

// startWait bounds a replica's start: on two busy cores the imports alone take minutes.
const startWait = 20 * time.Minute

func (e *engine) url() string { return "http://127.0.0.1:" + strconv.Itoa(e.http) }

func (e *engine) start(ctx context.Context) error {
	if e.vllm.sim {
		args := []string{
			"sim", "--model", "tiny", "--version", e.vllm.version,
			"--port", strconv.Itoa(e.http), "--events-port", strconv.Itoa(e.events), "--replay-port", strconv.Itoa(e.replay),
			"--block-size", strconv.Itoa(blockSize), "--blocks", "4097", "--max-model-len", strconv.Itoa(contextLength), "--max-seqs", strconv.Itoa(e.seqs),
		}
		if e.adapter {
			args = append(args, "--adapter", "adapter", "--speed", "2")
		}
		if e.connector != "" {
			args = append(args, "--connector", e.connector, "--role", e.role)
		}
		if e.connector == mooncake {
			args = append(args, "--transfer-lease", "2s") // of which Mooncake has sixteen
		}
		return e.launch(proc.Command(ctx, append([]string{e.vllm.binary}, args...)...))
	}
	model := filepath.Join(e.vllm.cache, modelFolder)
	args := []string{
		"-m", "vllm.entrypoints.cli.main", "serve", model, "--served-model-name", "tiny",
		"--host", "127.0.0.1", "--port", strconv.Itoa(e.http),
		"--dtype", "float32", "--enforce-eager", "--max-model-len", strconv.Itoa(contextLength), "--max-num-seqs", strconv.Itoa(e.seqs),
		"--block-size", strconv.Itoa(blockSize),
		"--otlp-traces-endpoint", e.spans,
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, e.events, e.replay),
	}
	if !e.plain {
		args = append(args, "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
	}
	if e.tests == "" {
		args = append(args, "--enable-prompt-tokens-details")
	} else { // as the tests start it
		args = append(args, "--max-logprobs", "-1", "--enable-tokenizer-info-endpoint")
	}
	if e.adapter {
		args = append(args, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules", "adapter="+filepath.Join(model, "lora"))
	}
	if e.vllm.hasRender() {
		args = append(args, "--enable-scale-out")
	}
	if e.comments != "" {
		args = append(args, "--sse-keep-alive-interval", e.comments)
	}
	more, environment := e.connecting()
	cmd := proc.Command(ctx, append(append([]string{e.vllm.python}, args...), more...)...)
	cmd.Env = append(append(os.Environ(), environment...),
		"PATH="+filepath.Dir(e.vllm.python)+":"+os.Getenv("PATH"),
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1",
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_SERVER_DEV_MODE=1", "CUDA_VISIBLE_DEVICES=",
		"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_ENABLE_COHERE_API=1",
		"OTEL_EXPORTER_OTLP_TRACES_INSECURE=true", "OTEL_BSP_SCHEDULE_DELAY=500",
	)
	return e.launch(cmd)
}

// launch starts the process with its output in the replica's log.
func (e *engine) launch(cmd *exec.Cmd) (err error) {
	e.process, err = proc.StartLogged(e.id, e.logFile(), cmd)
	return err
}

// wait waits until the replica answers.
func (e *engine) wait(ctx context.Context, limit time.Duration) error {
	return e.process.Until(ctx, limit, 500*time.Millisecond, func(ctx context.Context) error {
		code, _, err := call(ctx, http.MethodGet, e.url()+"/health", nil)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
}

// stop ends the replica and its workers, gently first.
func (e *engine) stop() {
	e.process.Stop(15 * time.Second)
	e.process = nil
}

// kill ends the replica as a crash would.
func (e *engine) kill() {
	e.process.Kill()
	e.process = nil
}

// hasRender reports whether the version serves /render.
func (r *release) hasRender() bool { return r.atLeast(18) }

// atLeast compares the minor version.
func (r *release) atLeast(minor int) bool {
	var major, m, patch int
	if _, err := fmt.Sscanf(r.version, "%d.%d.%d", &major, &m, &patch); err != nil {
		return false
	}
	return major > 0 || m >= minor
}
