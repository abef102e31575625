package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
	"github.com/kvpilot/kvpilot/server/kit/scope"
	"github.com/kvpilot/kvpilot/server/kit/sleep"
)

// Peer is another router that there is a connection to.
type Peer struct {
	ID   string
	Conn grpc.ClientConnInterface
}

// Fleet is this router's view of the others.
type Fleet interface {
	// IndexPeers lists the peers that have an index worth pulling, the best first.
	IndexPeers() []Peer
	// Missing lists the replicas with a rank whose cache this router does not know exactly and cannot learn from its engine now.
	Missing() []replica.ID
}

// Feeds are the event feeds. DelayFirstReplays has unknown ones wait until the given time for an index; the zero
// time ends it.
type Feeds interface{ DelayFirstReplays(until time.Time) }

// Params are the parts that a Warm works with. Index and Fleet are needed.
type Params struct {
	Index *kvindex.Index
	Fleet Fleet
	// Feeds wait for an index; nil: they do not.
	Feeds Feeds
	// AgainEvery is the time between looks for missing ranks, after the first pull; zero: two seconds.
	AgainEvery time.Duration
	// MaxBytes is the memory that the index may take; it bounds a peer's bytes.
	MaxBytes int64
	Scope    scope.Scope
}

const (
	// searchFor is how long a new router looks for a peer to pull from, lookEvery the time between looks.
	searchFor = 5 * time.Second
	lookEvery = 25 * time.Millisecond
	// attemptFor bounds a pull, stallFor the time without data in it.
	attemptFor = 60 * time.Second
	stallFor   = 3 * time.Second
	// delaySearch is how long feeds wait for a peer to be found, delayPull how long for the next data, and delayMost for all.
	delaySearch, delayPull, delayMost = time.Second, 500 * time.Millisecond, 5 * time.Second
	// againEvery is the time between looks for missing ranks; where peers do not have them either, it doubles up to againMost.
	againEvery, againMost = 2 * time.Second, time.Minute
)

var (
	errStalled = errors.New("the peer sent nothing for too long")
	errSlow    = errors.New("the peer did not send its index in time")
	errLarge   = errors.New("the peer sent more than the index may hold")
)

// Warm pulls and serves indexes.
type Warm struct {
	params  Params
	log     *slog.Logger
	metrics *metrics
	began   time.Time
	settled atomic.Bool
	serving chan struct{} // room for pulls by peers
}

// New returns a Warm. It starts nothing.
func New(p Params) *Warm {
	return &Warm{params: p, log: p.Scope.Log(), metrics: newMetrics(p.Scope.Meters()), serving: make(chan struct{}, maxServed)}
}

// Settled reports whether no more is to come from peers: an index was pulled, or there is none to pull.
func (w *Warm) Settled() bool { return w.settled.Load() }

// Run pulls the index of a peer, and then missing ranks, until ctx ends.
func (w *Warm) Run(ctx context.Context) error {
	w.began = time.Now()
	w.delay(delaySearch)
	w.pullOnce(ctx)
	w.settled.Store(true)
	if w.params.Feeds != nil {
		w.params.Feeds.DelayFirstReplays(time.Time{})
	}
	w.pullMissing(ctx)
	return nil
}

// pullMissing pulls, again and again, ranks that this router does not know exactly from peers that do: one that started when no peer
// was able, or has lost events that its engine no longer has, would else wait until the engine's whole cache has turned over. Ranks that
// were missing at the look before are pulled, so that an engine's own replay comes first.
func (w *Warm) pullMissing(ctx context.Context) {
	every := cmp.Or(w.params.AgainEvery, againEvery)
	var before, asked []replica.ID
	for wait := every; sleep.For(ctx, wait); {
		missing := w.params.Fleet.Missing()
		still := slices.DeleteFunc(slices.Clone(missing), func(id replica.ID) bool { return !slices.Contains(before, id) })
		before = missing
		if len(still) == 0 {
			wait, asked = every, nil
			continue
		}
		if slices.ContainsFunc(still, func(id replica.ID) bool { return !slices.Contains(asked, id) }) {
			wait = every
		}
		asked = still
		w.pullOf(ctx, still)
		wait = min(2*wait, againMost)
	}
}

// pullOf pulls the exact ranks of some replicas from the first peer that has any.
func (w *Warm) pullOf(ctx context.Context, replicas []replica.ID) {
	in := &peerv1.PullIndexRequest{Exact: true}
	for _, id := range replicas {
		in.ReplicaIds = append(in.ReplicaIds, string(id))
	}
	for _, p := range w.params.Fleet.IndexPeers() {
		if got, _ := w.attempt(ctx, p, in); got.Ranks > 0 || ctx.Err() != nil {
			return
		}
	}
}

// delay has feeds wait for so long from now.
func (w *Warm) delay(d time.Duration) {
	if w.params.Feeds == nil {
		return
	}
	until, most := time.Now().Add(d), w.began.Add(delayMost)
	if until.After(most) {
		until = most
	}
	w.params.Feeds.DelayFirstReplays(until)
}

// pullOnce tries each peer once, in the order of Peers, until one has sent its whole index.
func (w *Warm) pullOnce(ctx context.Context) {
	tried := map[string]bool{}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for end := time.Now().Add(searchFor); ctx.Err() == nil && time.Now().Before(end); {
		for _, p := range w.params.Fleet.IndexPeers() {
			if tried[p.ID] || ctx.Err() != nil {
				continue
			}
			tried[p.ID] = true
			if _, err := w.attempt(ctx, p, &peerv1.PullIndexRequest{}); err == nil {
				return
			}
			end = time.Now().Add(searchFor)
			break // the order may have changed
		}
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
	if len(tried) > 0 && ctx.Err() == nil {
		w.log.Warn("no peer's index could be pulled; the engines' replays alone fill it", "peers", len(tried))
	}
}

// attempt asks one peer, within its bounds. Without an error all came that was asked for.
func (w *Warm) attempt(ctx context.Context, p Peer, in *peerv1.PullIndexRequest) (kvindex.Loaded, error) {
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	begin := time.Now()
	slow := time.AfterFunc(attemptFor, func() { give(errSlow) })
	defer slow.Stop()
	quiet := time.AfterFunc(stallFor, func() { give(errStalled) })
	defer quiet.Stop()
	got, bytes, err := w.load(ctx, p, in, quiet)
	took := time.Since(begin)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	attrs := []any{"peer", p.ID, "ranks", got.Ranks, "blocks", got.Blocks, "own_kept", got.Skipped, "not_found_yet", got.Parked, "bytes", bytes, "took", took.Round(time.Millisecond)}
	switch {
	case err == nil && in.GetExact() && got.Ranks == 0: // the peer does not have it either
	case err == nil:
		w.metrics.pulled(outcomeOK, took)
		w.log.Info("the index of a peer was pulled", attrs...)
	case got.Ranks > 0:
		w.metrics.pulled(outcomeIncomplete, took)
		w.log.Warn("a part of a peer's index was pulled", append(attrs, "error", err)...)
	default:
		w.metrics.pulled(outcomeFailed, took)
		w.log.Warn("a peer's index was not pulled", append(attrs, "error", err)...)
	}
	return got, err
}

func (w *Warm) load(ctx context.Context, p Peer, in *peerv1.PullIndexRequest, quiet *time.Timer) (kvindex.Loaded, int64, error) {
	stream, err := peerv1.NewIndexServiceClient(p.Conn).PullIndex(ctx, in, grpc.MaxCallRecvMsgSize(2*maxPiece))
	if err != nil {
		return kvindex.Loaded{}, 0, err
	}
	r := &reader{stream: stream, quiet: quiet, most: w.mostBytes(), progress: func() { w.delay(delayPull) }}
	got, err := w.params.Index.Load(r)
	if err != nil && r.err != nil {
		err = r.err
	}
	return got, r.bytes, err
}

// mostBytes bounds a snapshot: sixteen bytes for each block that the index may hold, twice, and the frames of each rank.
func (w *Warm) mostBytes() int64 { return w.params.MaxBytes/kvindex.BlockCost*16*2 + 64<<20 }

// reader is a stream of pieces as bytes.
type reader struct {
	stream grpc.ServerStreamingClient[peerv1.PullIndexResponse]
	quiet  *time.Timer
	rest   []byte
	bytes  int64
	most   int64
	err    error // why the stream ended, unless it was whole
	// progress is called with each piece.
	progress func()
}

func (r *reader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		piece, err := r.stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = fmt.Errorf("pull: %w", err)
			}
			return 0, err
		}
		r.quiet.Reset(stallFor)
		r.progress()
		r.rest = piece.GetData()
		if r.bytes += int64(len(r.rest)); r.bytes > r.most {
			r.err = errLarge
			return 0, r.err
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
