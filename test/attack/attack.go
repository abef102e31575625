package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// attack is one hostile party.
type attack struct {
	name, sends string
	// fast attacks run in -fast, too.
	fast bool
	// fleet is the fleet to attack. Zero values: three honest replicas, default settings.
	fleet fleet
	// prepare runs before the undisturbed phase; nil: nothing to prepare.
	prepare func(context.Context, *world) error
	// run attacks until its context ends, and returns as soon as it can then. Its error says that the attack could not be made.
	run func(context.Context, *world) error
	// check judges the attacked phase beyond the honest tenants' answers; nil: nothing more to judge.
	check func(*world) (note string, faults []string)
	// least is the least time of the attacked phase; 0: as the others.
	least time.Duration
	// slower says that honest times are the subject of check, and are not compared with the undisturbed ones.
	slower bool
}

// settle is the time from the attack's start until the router must have noticed a liar. Checks of shares leave it out.
const settle = 10 * time.Second

// play builds the fleet, measures the honest tenants without and with the attack, and judges.
func (a attack) play(ctx context.Context, o options, dir string) (verdict, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return verdict{}, err
	}
	w, err := start(ctx, a.fleet, o, dir)
	defer w.close()
	if err != nil {
		return verdict{}, err
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, w); err != nil {
			return verdict{}, fmt.Errorf("prepare: %w", err)
		}
	}
	w.honest.play(ctx, w, 2*time.Second) // connections, token ids and speeds
	calm := w.honest.play(ctx, w, o.phase)
	idle := w.router().resident()
	w.router().resetPeak()

	phase := max(o.phase, a.least)
	attacking, end := context.WithTimeout(ctx, phase)
	defer end()
	w.began = time.Now()
	for _, f := range w.fronts {
		f.active.Store(true)
	}
	ran := make(chan error, 1)
	go func() { ran <- a.run(attacking, w) }()
	under := w.honest.play(ctx, w, phase)
	end()
	select {
	case err = <-ran:
	case <-time.After(20 * time.Second):
		err = fmt.Errorf("the attack does not end")
	}
	if err != nil {
		return verdict{}, err
	}
	w.attacked = under
	v := verdict{calm: calm, under: under, idle: idle, peak: w.router().peak(), bound: int64(o.memory) * 600 / 512}
	v.judge(a, o)
	v.note = w.found.String()
	if a.check != nil {
		note, faults := a.check(w)
		v.note = note
		v.faults = append(v.faults, faults...)
	}
	return v, nil
}
