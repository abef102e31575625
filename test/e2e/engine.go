package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// engine is one real vLLM replica.
type engine struct {
	r                    *run
	id                   string
	http, events, replay int
	cmd                  *exec.Cmd
	gone                 chan struct{}
	log                  *os.File
}

// blockSize is what the replicas use.
const blockSize = 32

// startFleet starts the replicas and waits until they serve.
func (r *run) startFleet(ctx context.Context) error {
	for i := range r.replicas {
		e := &engine{r: r, id: fmt.Sprintf("vllm-%d", i)}
		ports, err := freePorts(3)
		if err != nil {
			return err
		}
		e.http, e.events, e.replay = ports[0], ports[1], ports[2]
		r.fleet = append(r.fleet, e)
		if err := e.start(); err != nil {
			return err
		}
		// One after the other: two starts at once take longer on few cores.
		if err := e.wait(ctx, 8*time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func freePorts(n int) ([]int, error) {
	var list []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() //nolint:errcheck // only its number was wanted
		list = append(list, ln.Addr().(*net.TCPAddr).Port)
	}
	return list, nil
}

func (e *engine) url() string { return "http://127.0.0.1:" + strconv.Itoa(e.http) }

func (e *engine) start() error {
	args := []string{
		"-m", "vllm.entrypoints.cli.main", "serve", e.r.model, "--served-model-name", "tiny",
		"--host", "127.0.0.1", "--port", strconv.Itoa(e.http),
		"--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "16",
		"--block-size", strconv.Itoa(blockSize), "--enable-prompt-tokens-details",
		"--enable-lora", "--max-lora-rank", "8", "--lora-modules", "adapter=" + filepath.Join(e.r.model, "lora"),
		"--otlp-traces-endpoint", e.r.spans.url(),
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, e.events, e.replay),
	}
	if e.r.hasRender() {
		args = append(args, "--enable-scale-out")
	}
	log, err := os.OpenFile(filepath.Join(e.r.logs, e.id+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(e.r.python, args...)
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Dir(e.r.python)+":"+os.Getenv("PATH"),
		"VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1",
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "VLLM_SERVER_DEV_MODE=1", "CUDA_VISIBLE_DEVICES=",
		"OTEL_EXPORTER_OTLP_TRACES_INSECURE=true", "OTEL_BSP_SCHEDULE_DELAY=500",
	)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers go with it
	if err := cmd.Start(); err != nil {
		return err
	}
	e.cmd, e.log, e.gone = cmd, log, make(chan struct{})
	go func(gone chan struct{}) {
		_ = cmd.Wait() // how it ended is in its log
		close(gone)
	}(e.gone)
	return nil
}

// wait waits until the replica answers.
func (e *engine) wait(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if code, _, err := call(ctx, http.MethodGet, e.url()+"/health", nil); err == nil && code == http.StatusOK {
			return nil
		}
		select {
		case <-e.gone:
			return fmt.Errorf("%s ended while starting; see %s", e.id, e.log.Name())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer; see %s", e.id, e.log.Name())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// stop ends the replica and its workers, gently first.
func (e *engine) stop() {
	if e.cmd == nil {
		return
	}
	e.signal(syscall.SIGTERM)
	select {
	case <-e.gone:
	case <-time.After(15 * time.Second):
	}
	e.kill()
}

// kill ends the replica as a crash would.
func (e *engine) kill() {
	e.signal(syscall.SIGKILL)
	<-e.gone
	e.log.Close() //nolint:errcheck // a log
	e.cmd = nil
}

func (e *engine) signal(s syscall.Signal) {
	if err := syscall.Kill(-e.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		fmt.Fprintf(e.r.out, "  signal to %s: %v\n", e.id, err)
	}
}

// hasRender tells whether the version serves /render.
func (r *run) hasRender() bool { return r.atLeast(18) }

// atLeast compares the minor version.
func (r *run) atLeast(minor int) bool {
	var major, m, patch int
	if _, err := fmt.Sscanf(r.version, "%d.%d.%d", &major, &m, &patch); err != nil {
		return false
	}
	return major > 0 || m >= minor
}
