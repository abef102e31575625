package tokenizer

import (
	"context"
	"errors"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/cache"
	"github.com/kvpilot/kvpilot/server/tokens/tokenizer/remote"
)

// Whatever joins after the end is answered and starts nothing: the remote pool no longer counts questions then.
func TestNoFlightStartsAfterTheEnd(t *testing.T) {
	f := flights{open: map[cache.Key]*flight{}}
	begun := make(chan struct{})
	f.detached(t.Context(), cache.Key{Hi: 1}, func(ctx context.Context) (*entry, Source, error) {
		close(begun)
		<-ctx.Done()
		return nil, "", ctx.Err()
	}, func() { t.Error("the first flight was refused") })
	<-begun
	f.close()
	for key := range 2 {
		_, _, shared, err := f.wait(t.Context(), cache.Key{Hi: uint64(key)}, func(context.Context) (*entry, Source, error) {
			t.Error("a flight started after the end")
			return nil, "", nil
		})
		if shared || !errors.Is(err, context.Canceled) {
			t.Errorf("key %d: shared %v, error %v, want context.Canceled", key, shared, err)
		}
	}
	f.wg.Wait()
}

// A question that begins while the pool ends is over before the remote pool waits for its last one.
func TestQuestionsAtTheEndAreWaitedFor(t *testing.T) {
	list := []*replica.Replica{{ID: "r", URL: "http://127.0.0.1:1", State: replica.StateReady, Version: "0.32.0"}}
	for range 50 {
		p := New(DefaultConfig(), Params{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		p.flights.detached(ctx, cache.Key{Hi: 1}, func(own context.Context) (*entry, Source, error) {
			<-ctx.Done()
			_, err := p.asker.remote.Do(own, list, &remote.Job{Op: remote.OpDetokenize, Model: "m", IDs: []uint32{1}}) // as the race detector sees it, an Add beside a Wait if the order is wrong
			return nil, "", err
		}, func() {})
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}
