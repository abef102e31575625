package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

// checkMoves replaces each replica in turn, behind a drain that moves its requests: no stream is lost, and the replica is empty long before its streams
// would have ended.
func (r *disturbances) checkMoves(ctx context.Context) (string, error) {
	letters, err := r.letters(ctx)
	if err != nil {
		return "", err
	}
	streams, longest := 0, time.Duration(0)
	for _, leaving := range r.engines {
		outcomes := make([]outcome, r.seqs*len(r.engines)/2) // all fit on the other replicas
		begun := make(chan struct{}, len(outcomes))
		var all sync.WaitGroup
		for i := range outcomes {
			all.Go(func() { outcomes[i] = r.router.begunStream(ctx, i, letters, begun) })
		}
		for range outcomes {
			<-begun
		}
		took, err := r.router.emptied(ctx, leaving)
		if err == nil {
			leaving.stop() // the streams that it had are elsewhere
		}
		all.Wait()
		if err != nil {
			return "", err
		}
		longest = max(longest, took)
		for i, o := range outcomes {
			if !o.whole {
				return "", fmt.Errorf("stream %d of replica %q was lost: %s", i, o.replica, o.err)
			}
		}
		streams += len(outcomes)
		if err := leaving.start(ctx); err != nil {
			return "", err
		}
		if err := leaving.wait(ctx, startWait); err != nil {
			return "", err
		}
		if _, err := r.router.api.Replicas().Undrain(ctx, &kvpilotv1.UndrainRequest{ReplicaId: leaving.id}); err != nil {
			return "", err
		}
		if err := r.router.waitExact(ctx, len(r.engines), time.Minute); err != nil {
			return "", err
		}
		if err := r.remember(); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d streams, %d replicas replaced, none lost, each replica empty within %.1f s", streams, len(r.engines), longest.Seconds()), nil
}

// emptied drains a replica, moves its requests, and returns how long it took until none was left there.
func (p *routerProcess) emptied(ctx context.Context, e *engine) (time.Duration, error) {
	began := time.Now()
	if _, err := p.api.Replicas().Drain(ctx, &kvpilotv1.DrainRequest{ReplicaId: e.id, Move: true}); err != nil {
		return 0, err
	}
	err := p.process.Until(ctx, time.Minute, 50*time.Millisecond, func(ctx context.Context) error {
		got, err := p.api.Replicas().Get(ctx, &kvpilotv1.GetRequest{ReplicaId: e.id})
		if n := got.GetReplica().GetDrain().GetInFlight(); err == nil && n > 0 {
			err = fmt.Errorf("%d requests are left on %s", n, e.id)
		}
		return err
	})
	return time.Since(began), err
}
