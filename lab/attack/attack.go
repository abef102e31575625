package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvpilot/kvpilot/internal/proc"
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
	calm := w.honest.play(ctx, w, 2*time.Second) // connections, token ids and speeds
	if !o.fast {                                 // their times are judged
		calm = w.honest.play(ctx, w, o.phase)
	}
	for _, f := range w.fronts {
		f.active.Store(true)
	}
	elsewhere, err := a.elsewhere(ctx, o, dir, w)
	if err != nil {
		return verdict{}, fmt.Errorf("attack another router: %w", err)
	}
	idle, _ := w.router().memory()
	_ = proc.ResetPeak(w.router().PID) // where the kernel refuses it, the peak is since the start, which is stricter
	w.began = time.Now()
	under, err := a.attack(ctx, w, w.honest, max(o.phase, a.least))
	if err != nil {
		return verdict{}, err
	}
	w.attacked = under
	_, peak := w.router().memory()
	v := verdict{calm: calm, elsewhere: elsewhere, under: under, idle: idle, peak: peak, bound: int64(o.memory) * 600 / 512}
	v.judge(a, o)
	v.note = w.found.String()
	if a.check != nil {
		note, faults := a.check(w)
		v.note = note
		v.faults = append(v.faults, faults...)
	}
	return v, nil
}

// attack attacks w for so long while the honest tenants send, and returns their results.
func (a attack) attack(ctx context.Context, w *world, tenants *honest, during time.Duration) ([]result, error) {
	attacking, end := context.WithTimeout(ctx, during)
	defer end()
	ran := make(chan error, 1)
	go func() { ran <- a.run(attacking, w) }()
	met := tenants.play(ctx, w, during)
	end()
	select {
	case err := <-ran:
		return met, err
	case <-time.After(20 * time.Second):
		return met, errors.New("the attack does not end")
	}
}

// elsewhere attacks another router of the same replicas, and returns the results of the honest tenants at theirs: the cost of the attack
// to them because all of it runs on one machine. Times that are not judged are not compared.
func (a attack) elsewhere(ctx context.Context, o options, dir string, w *world) ([]result, error) {
	if o.fast || a.slower || len(w.routers) > 1 {
		return nil, nil
	}
	at, err := proc.FreeAddresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	other := &world{routers: []*router{{http: at[0], grpc: at[1], admin: at[2]}}, replicas: w.replicas, fronts: w.fronts, memory: w.memory, began: time.Now()}
	defer func() { other.router().Stop(3 * time.Second) }()
	if err := other.serve(ctx, a.fleet, o, dir, len(w.routers), other.router()); err != nil {
		return nil, err
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, other); err != nil {
			return nil, err
		}
	}
	return a.attack(ctx, other, w.honest, o.phase)
}
