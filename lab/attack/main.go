package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the command's flags.
type options struct {
	binary, only string
	memory       int // MiB
	phase        time.Duration
	fast, list   bool
	keep         bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func parse() options {
	var o options
	flag.StringVar(&o.binary, "binary", "", "the kvpilot to attack; empty: build it")
	flag.StringVar(&o.only, "only", "", "parts of the names of the attacks to run, separated by commas")
	flag.IntVar(&o.memory, "memory", 512, "memory.max_bytes of the router, in MiB")
	flag.DurationVar(&o.phase, "phase", 12*time.Second, "time of the undisturbed and of the attacked phase")
	flag.BoolVar(&o.fast, "fast", false, "run the short attacks with short phases, and do not judge times")
	flag.BoolVar(&o.list, "list", false, "list the attacks and exit")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	flag.Parse()
	return o
}

func run(ctx context.Context) error {
	o := parse()
	chosen := choose(all(), o)
	if o.list {
		for _, a := range chosen {
			fmt.Printf("%-28s %s\n", a.name, a.sends)
		}
		return nil
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-only %s: no attack has such a name", o.only)
	}
	dir, err := os.MkdirTemp("", "kvpilot-attack-")
	if err != nil {
		return err
	}
	if o.keep {
		fmt.Println("logs are in", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	if o.binary == "" {
		if o.binary, err = build(ctx, dir); err != nil {
			return err
		}
	}
	if o.fast {
		o.phase = min(o.phase, 4*time.Second)
	}
	return play(ctx, o, dir, chosen)
}

// play runs the attacks one after the other and prints a row for each.
func play(ctx context.Context, o options, dir string, chosen []attack) error {
	fmt.Print(head)
	failed := 0
	for i, a := range chosen {
		v, err := a.play(ctx, o, filepath.Join(dir, fmt.Sprint(i)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			v = verdict{faults: []string{err.Error()}}
		}
		fmt.Print(v.row(a))
		if len(v.faults) > 0 {
			failed++
		}
	}
	fmt.Printf("\n%d passed, %d failed\n", len(chosen)-failed, failed)
	if failed > 0 {
		return errors.New("an attack changed the honest tenants' answers")
	}
	return nil
}

func choose(from []attack, o options) []attack {
	var chosen []attack
	for _, a := range from {
		if o.fast && !a.fast {
			continue
		}
		for part := range strings.SplitSeq(o.only, ",") {
			if strings.Contains(a.name, part) {
				chosen = append(chosen, a)
				break
			}
		}
	}
	return chosen
}

// build compiles the router as a release does.
func build(ctx context.Context, dir string) (string, error) {
	name := filepath.Join(dir, "kvpilot")
	out, err := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", name, "github.com/kvpilot/kvpilot/cmd/kvpilot").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return name, nil
}
