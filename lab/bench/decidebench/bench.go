package decidebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// Config says what to measure.
type Config struct {
	Ranks  int // replicas of one rank each
	Blocks int // in the index, over all ranks
	Tokens int // ids of a prompt
	// Calls is the number of decisions of each case in a round; Clients ask at the same time for the rate, one for the latencies.
	Calls, Clients, Rounds int
	// Core is the processor that the router may use (taskset); below 0: all.
	Core int
	// Cases are the names of the cases to measure; empty: all.
	Cases []string
	// Profiles is a folder for a CPU profile of the router per case, taken after the first round; empty: none.
	Profiles string
	// Self is the command that runs this program. Its command "serve" is the router, "events engines" are the engines.
	Self []string
	// Progress takes remarks for people.
	Progress io.Writer
}

// Result has a case for each surface and kind of question.
type Result struct {
	Cases []Case `json:"cases"`
	// CPURatio and CPURatioBook are gRPC's processor time divided by REST's (a completions body), for a choice alone and for one that is
	// booked and released.
	CPURatio     float64 `json:"cpu_grpc_by_rest"`
	CPURatioBook float64 `json:"cpu_grpc_by_rest_book_and_release"`
}

// Case is the cost of one kind of question: CPU is the median over the rounds, while all clients ask.
type Case struct {
	Name string  `json:"name"`
	CPU  float64 `json:"cpu_us_per_decision"`
	Rate float64 `json:"decisions_per_s"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`

	ask         func(context.Context, []uint32) error
	cpus, rates []float64
	took        []time.Duration
}

// Run measures all cases in turns.
func Run(ctx context.Context, c Config) (_ *Result, err error) {
	if c.Ranks < 1 || c.Ranks > 128 || c.Blocks < 1 || c.Tokens < 1 || c.Calls < 1 || c.Clients < 1 || c.Rounds < 1 {
		return nil, errors.New("all numbers must be positive, and ranks at most 128")
	}
	for _, name := range c.Cases {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("unknown case %q; known are %q", name, Names())
		}
	}
	f, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	cases := c.cases(f)
	for round := range c.Rounds {
		fmt.Fprintf(c.Progress, "round %d of %d\n", round+1, c.Rounds)
		for _, one := range cases {
			if err := c.turn(ctx, f, one); err != nil {
				return nil, fmt.Errorf("%s: %w", one.Name, err)
			}
			if round == 0 && c.Profiles != "" {
				if err := c.profile(ctx, f, one); err != nil {
					return nil, fmt.Errorf("profile of %s: %w", one.Name, err)
				}
			}
		}
	}
	r := new(Result)
	for _, one := range cases {
		one.CPU, one.Rate = measure.Median(one.cpus), measure.Median(one.rates)
		slices.Sort(one.took)
		one.P50, one.P99 = measure.Micros(measure.Quantile(one.took, .5)), measure.Micros(measure.Quantile(one.took, .99))
		r.Cases = append(r.Cases, *one)
	}
	r.CPURatio, r.CPURatioBook = r.ratio(caseGRPC, caseREST), r.ratio(caseGRPCBook, caseRESTBook)
	return r, nil
}

// ratio is the processor time of one case divided by another's; 0 when one of them was not measured.
func (r *Result) ratio(of, by string) float64 {
	cpu := map[string]float64{}
	for _, c := range r.Cases {
		cpu[c.Name] = c.CPU
	}
	if cpu[by] == 0 {
		return 0
	}
	return cpu[of] / cpu[by]
}

// The names of the cases.
const (
	caseGRPC     = "grpc"
	caseREST     = "rest"
	caseGRPCBook = "grpc book+release"
	caseRESTBook = "rest book+release"
	caseTyped    = "rest typed"
)

// Names are the names of all cases.
func Names() []string { return []string{caseGRPC, caseREST, caseGRPCBook, caseRESTBook, caseTyped} }

// cases are the cases that the Config names.
func (c Config) cases(f *fleet) []*Case {
	var list []*Case
	for _, one := range []*Case{
		{Name: caseGRPC, ask: f.grpcAsk(false)}, {Name: caseREST, ask: f.bodyAsk(false)},
		{Name: caseGRPCBook, ask: f.grpcAsk(true)}, {Name: caseRESTBook, ask: f.bodyAsk(true)},
		{Name: caseTyped, ask: f.typedAsk(false)},
	} {
		if len(c.Cases) == 0 || slices.Contains(c.Cases, one.Name) {
			list = append(list, one)
		}
	}
	return list
}

// profileSeconds is how long a CPU profile takes.
const profileSeconds = 4

// profile writes a CPU profile of the router while all clients ask.
func (c Config) profile(ctx context.Context, f *fleet, one *Case) error {
	done := make(chan error, 1)
	go func() {
		text, err := f.call(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", f.admin, profileSeconds), nil)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.Profiles, "decide-"+strings.ReplaceAll(one.Name, " ", "-")+".cpu"), text, 0o600)
		}
		done <- err
	}()
	for {
		_, err := c.asks(ctx, c.Clients, 32, one.ask)
		if err != nil {
			return errors.Join(err, <-done)
		}
		select {
		case err := <-done:
			return err
		default:
		}
	}
}

// turn asks with one client for the latencies, then with all for processor time and rate.
func (c Config) turn(ctx context.Context, f *fleet, one *Case) error {
	took, err := c.asks(ctx, 1, max(c.Calls/4, 1), one.ask)
	if err != nil {
		return err
	}
	one.took = append(one.took, took...)
	before, err := measure.ProcessCPU(f.router.PID)
	if err != nil {
		return err
	}
	begin := time.Now()
	if took, err = c.asks(ctx, c.Clients, max(c.Calls/c.Clients, 1), one.ask); err != nil {
		return err
	}
	wall := time.Since(begin)
	after, err := measure.ProcessCPU(f.router.PID)
	if err != nil {
		return err
	}
	one.cpus = append(one.cpus, measure.Micros(after-before)/float64(len(took)))
	one.rates = append(one.rates, float64(len(took))/wall.Seconds())
	return nil
}

// asks has clients make so many calls each, every one with another prompt, and returns how long each took.
func (c Config) asks(ctx context.Context, clients, calls int, ask func(context.Context, []uint32) error) ([]time.Duration, error) {
	lists, errs := make([][]time.Duration, clients), make([]error, clients)
	var asking sync.WaitGroup
	for n := range clients {
		asking.Go(func() {
			ids := make([]uint32, c.Tokens)
			for range calls {
				for i := range ids {
					ids[i] = rand.Uint32N(150_000)
				}
				begin := time.Now()
				if errs[n] = ask(ctx, ids); errs[n] != nil {
					return
				}
				lists[n] = append(lists[n], time.Since(begin))
			}
		})
	}
	asking.Wait()
	return slices.Concat(lists...), errors.Join(errs...)
}
