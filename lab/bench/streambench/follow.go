package streambench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvpilot/kvpilot/lab/bench/measure"
)

// MostFollowed is the most processor time that a chunk of a followed stream may take, relative to one of a stream that is not followed.
const MostFollowed = 1.05

// FollowCost is the cost of following streams so that another replica can resume them: one router with router.resume_streams 0 and one
// with the default, before the same replicas, in turns.
type FollowCost struct {
	Cases []FollowCase `json:"cases"`
	// AllocsUnfollowed and AllocsFollowed are the allocations of one more chunk.
	AllocsUnfollowed float64 `json:"allocs_per_chunk_unfollowed"`
	AllocsFollowed   float64 `json:"allocs_per_chunk_followed"`
	// Held is the number of streams whose memory was weighed, each after its first chunk: live objects and stacks of the router.
	Held            int   `json:"held_streams"`
	BytesUnfollowed int64 `json:"bytes_per_stream_unfollowed"`
	BytesFollowed   int64 `json:"bytes_per_stream_followed"`
}

// FollowCase is the processor time of a number of streams at once, in µs per chunk.
type FollowCase struct {
	Streams    int     `json:"streams"`
	Rounds     int     `json:"rounds"`
	Unfollowed float64 `json:"unfollowed_us"` // medians
	Followed   float64 `json:"followed_us"`
	// Ratio is the ratio of the medians. RatioOfPairs is the median of the ratios of each round, and half of these lie between Low and High.
	Ratio        float64 `json:"ratio"`
	RatioOfPairs float64 `json:"ratio_of_pairs"`
	Low          float64 `json:"ratio_low"`
	High         float64 `json:"ratio_high"`
}

// Follow measures a FollowCost and writes it to out.
func Follow(ctx context.Context, o Options, out, progress io.Writer) error {
	o.Subjects = []string{Unfollowed, Followed}
	var cost FollowCost
	err := o.with(ctx, progress, func(ctx context.Context, f *field) error {
		if err := f.startAll(ctx); err != nil {
			return err
		}
		return (&bench{field: f}).follow(ctx, &cost)
	})
	if err != nil {
		return err
	}
	if o.JSON {
		return json.MarshalWrite(out, cost, jsontext.Multiline(true))
	}
	return cost.table(out)
}

func (b *bench) follow(ctx context.Context, cost *FollowCost) error {
	for _, c := range []struct {
		streams, chunks int
		every           time.Duration
	}{{64, 200, 10 * time.Millisecond}, {256, 100, 20 * time.Millisecond}} {
		n := b.scaled(c.streams)
		fmt.Fprintf(b.progress, "%d streams ...\n", n)
		b.warm = func(ctx context.Context, p *process) error { // new connections, and codes in the caches
			if err := b.setUpstream(ctx, 2, c.every, false); err != nil {
				return err
			}
			if _, err := streams(ctx, p.address, n, c.every, 0); err != nil {
				return err
			}
			return b.setUpstream(ctx, c.chunks, c.every, false)
		}
		turns, err := b.paired(ctx, fmt.Sprintf("follow-%d", n), b.options.Rounds, func(ctx context.Context, p *process) ([]time.Duration, int, error) {
			latencies, err := streams(ctx, p.address, n, c.every, 0)
			return latencies, n * c.chunks, err
		})
		if b.warm = nil; err != nil {
			return err
		}
		cost.Cases = append(cost.Cases, newFollowCase(n, turns))
	}
	fmt.Fprintln(b.progress, "allocations and memory ...")
	if err := b.allocCase(ctx, b.scaled(64)); err != nil {
		return err
	}
	for _, r := range b.results {
		if r.Subject == Followed {
			cost.AllocsFollowed = *r.AllocsPerChunk
		} else {
			cost.AllocsUnfollowed = *r.AllocsPerChunk
		}
	}
	cost.Held = b.scaled(2000)
	for _, p := range b.subjects {
		n, err := b.weigh(ctx, p, cost.Held)
		if err != nil {
			return fmt.Errorf("memory, %s: %w", p.name, err)
		}
		if p.name == Followed {
			cost.BytesFollowed = n
		} else {
			cost.BytesUnfollowed = n
		}
	}
	return nil
}

// weigh is the memory of one of n streams that wait after their first chunk.
func (b *bench) weigh(ctx context.Context, p *process, n int) (int64, error) {
	if err := b.setUpstream(ctx, 2, time.Hour, true); err != nil {
		return 0, err
	}
	before, err := p.inUse(ctx)
	if err != nil {
		return 0, err
	}
	conns, err := openMany(ctx, p.address, n)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
		_, _ = b.quiet(ctx)
	}()
	if err != nil {
		return 0, err
	}
	after, err := p.inUse(ctx)
	return (after - before) / int64(n), err
}

func newFollowCase(n int, turns pairs) FollowCase {
	c := FollowCase{Streams: n, Rounds: len(turns[Followed]), Unfollowed: round2(turns.median(Unfollowed, cpuPerUnit)), Followed: round2(turns.median(Followed, cpuPerUnit))}
	c.Ratio = ratio(turns.median(Followed, cpuPerUnit), turns.median(Unfollowed, cpuPerUnit))
	var ratios []float64
	for i, one := range turns[Followed] {
		ratios = append(ratios, ratio(cpuPerUnit(one), cpuPerUnit(turns[Unfollowed][i])))
	}
	slices.Sort(ratios)
	if len(ratios) > 0 {
		c.RatioOfPairs, c.Low, c.High = measure.Quantile(ratios, 0.5), measure.Quantile(ratios, 0.25), measure.Quantile(ratios, 0.75)
	}
	return c
}

// table writes the cost for people.
func (c *FollowCost) table(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "| streams at once | not followed | followed | × | pairs of turns: median, half of them | bound |\n|---|---|---|---|---|---|\n")
	for _, one := range c.Cases {
		verdict := "met"
		if one.Ratio > MostFollowed {
			verdict = "missed"
		}
		fmt.Fprintf(&text, "| %d | %.1f µs of CPU per chunk | %.1f | %.3f | %.3f, %.3f to %.3f of %d | ≤ %.2f: %s |\n",
			one.Streams, one.Unfollowed, one.Followed, one.Ratio, one.RatioOfPairs, one.Low, one.High, one.Rounds, MostFollowed, verdict)
	}
	fmt.Fprintf(&text, "| allocations of one more chunk | %.2f | %.2f | | | |\n", c.AllocsUnfollowed, c.AllocsFollowed)
	fmt.Fprintf(&text, "| bytes of each of %d streams | %d | %d | %.2f | | |\n", c.Held, c.BytesUnfollowed, c.BytesFollowed, ratio(float64(c.BytesFollowed), float64(c.BytesUnfollowed)))
	_, err := io.WriteString(out, text.String())
	return err
}
