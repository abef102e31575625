package registry_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/registry"
)

// reports records the calls of a Reporter.
type reports []string

func (l *reports) Drained(id replica.ID, d *registry.Drain) {
	*l = append(*l, fmt.Sprint("drain ", id, " ", d != nil))
}

func (l *reports) Registered(s registry.Spec, left time.Duration) {
	*l = append(*l, fmt.Sprint("register ", s.ID, " ", s.URL, " ", left))
}

func (l *reports) Deregistered(id replica.ID) { *l = append(*l, fmt.Sprint("deregister ", id)) }

func TestChangesByCallersAreReported(t *testing.T) {
	var log reports
	virtual(t, newFleet("a", "b"), listed(), registry.Params{Reporter: &log}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		ctx := t.Context()
		mustRegister(t, r, spec("a"), time.Hour)
		mustRegister(t, r, spec("a"), time.Minute)
		for _, do := range []func() error{
			func() error { return r.Drain(ctx, "a", registry.DrainOptions{Force: true}) },
			func() error { return r.Drain(ctx, "a", registry.DrainOptions{Force: true}) }, // no change
			func() error { return r.Undrain(ctx, "a") },
			func() error { return r.Deregister(ctx, "a") },
			// What a peer reported is not reported back.
			func() error { return r.ApplyDrain(ctx, "b", func() *registry.Drain { return &registry.Drain{} }) },
			func() error {
				return r.ApplyRegistration(ctx, "b", func() registry.Registration { return registry.Registration{Spec: spec("b"), Left: time.Minute} })
			},
		} {
			if err := do(); err != nil {
				t.Error(err)
			}
		}
		url := spec("a").URL
		want := []string{"register a " + url + " 1h0m0s", "register a " + url + " 1m0s", "drain a true", "drain a false", "deregister a"}
		if !slices.Equal(log, want) {
			t.Errorf("reported %q, want %q", log, want)
		}
	})
}

func TestWhatPeersReportIsApplied(t *testing.T) {
	virtual(t, newFleet("a", "s"), listed(spec("s")), registry.Params{}, func(t *testing.T, r *registry.Registry, _ *watcher) {
		ctx := t.Context()
		apply := func(id replica.ID, left time.Duration) error {
			return r.ApplyRegistration(ctx, id, func() registry.Registration { return registry.Registration{Spec: spec(string(id)), Left: left} })
		}
		if err := r.ApplyDrain(ctx, "a", func() *registry.Drain { return &registry.Drain{} }); err != nil {
			t.Errorf("drain of a replica that is not known yet: %v", err)
		}
		if err := apply("a", time.Minute); err != nil {
			t.Error(err)
		}
		pass(time.Second)
		wantState(t, r, "a", replica.StateDraining)
		if err := r.ApplyDrain(ctx, "a", func() *registry.Drain { return nil }); err != nil {
			t.Error(err)
		}
		wantState(t, r, "a", replica.StateReady)
		if err := apply("s", 0); err != nil {
			t.Error(err)
		}
		if err := apply("s", time.Minute); err != nil {
			t.Errorf("a registration of a configured replica: %v", err)
		}
		wantState(t, r, "s", replica.StateReady)
		bad := spec("x")
		bad.URL = "http://169.254.169.254"
		err := r.ApplyRegistration(ctx, "x", func() registry.Registration { return registry.Registration{Spec: bad, Left: time.Minute} })
		if !errors.Is(err, registry.ErrForbidden) {
			t.Errorf("a peer's registration of the metadata service: %v", err)
		}
		if err := apply("a", 0); err != nil {
			t.Error(err)
		}
		if _, there := r.Snapshot().Replica("a"); there {
			t.Error("a withdrawn registration stays")
		}
	})
}
