package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

const benchModel = "bench"

// tokenizeReport has the figures of bench tokenize.
type tokenizeReport struct {
	stageFigures
	turnFigures
	exactFigures
	outageFigures
	soakFigures
	sizeFigures
}

// stageFigures is how long requests waited for their ids.
type stageFigures struct {
	// StageShareOfFull is the mean time a request waited for its ids, over the time of calling /tokenize
	// in full each turn, with no pause at all between turns; WithPause the same with
	// Pause between them, as when an answer is generated and read.
	StageShareOfFull  float64 `json:"stage_share_of_full"`
	StageShareOfModel float64 `json:"stage_share_of_unloaded_full"`
	ShareWithPause    float64 `json:"stage_share_of_full_with_pause"`
	PauseMillis       float64 `json:"pause_ms"`
	FullMeanMillis    float64 `json:"full_stage_mean_ms"`
	StageMeanMillis   float64 `json:"stage_mean_ms"`
	StageP99Millis    float64 `json:"stage_p99_ms"`
	EarlyShare        float64 `json:"answered_early"`
}

// turnFigures is the cost of a turn in processor time.
type turnFigures struct {
	Turn1CPUMicros  float64 `json:"turn1_cpu_us"`
	Turn40CPUMicros float64 `json:"turn40_cpu_us"`
	Turn40OverTurn1 float64 `json:"turn40_over_turn1_cpu"`
}

// exactFigures is the cost of a repeated prompt.
type exactFigures struct {
	// ExactHitMicros is from the bytes of a body that came before to its ids; Encode is the part
	// after reading, and ReadAnew the whole when the body is read as if it were new.
	ExactHitMicros       float64 `json:"exact_hit_us"`
	ExactHitEncodeMicros float64 `json:"exact_hit_encode_us"`
	ExactHitReadMicros   float64 `json:"exact_hit_read_anew_us"`
	ExactHitAllocs       float64 `json:"exact_hit_allocs"`
}

// outageFigures is how it goes without tokenizers.
type outageFigures struct {
	FailedWhenDown  int     `json:"failed_when_down"`
	DownStageMax    float64 `json:"stage_max_when_down_ms"`
	CachedShareUp   float64 `json:"cached_token_share_up"`
	CachedShareDown float64 `json:"cached_token_share_down"`
	AffinityLost    float64 `json:"affinity_points_lost"`
}

// soakFigures is the memory of many prompts.
type soakFigures struct {
	SoakPrompts   int   `json:"soak_prompts"`
	CacheLimit    int64 `json:"cache_limit_bytes"`
	CacheBytes    int64 `json:"cache_bytes"`
	HeapGrowth    int64 `json:"live_heap_growth_bytes"`
	RSSBeforeSoak int64 `json:"rss_before_bytes"`
	RSS           int64 `json:"rss_bytes"`
}

// sizeFigures is the size of the run.
type sizeFigures struct {
	Clients  int     `json:"clients"`
	Turns    int     `json:"turns"`
	Tokens   int     `json:"tokens_at_last_turn"`
	Replicas int     `json:"replicas"`
	Seconds  float64 `json:"seconds"`
}

// tokenizeBench is the benchmark's size.
type tokenizeBench struct {
	clients, turns, tokens, replicas, soak int
	pause                                  time.Duration
}

func newTokenizeCommand() *cobra.Command {
	b := tokenizeBench{}
	cmd := figuresCommand("tokenize", "Measure what tokenization costs: growing conversations, cached prompts, an outage",
		func(cmd *cobra.Command) (*tokenizeReport, error) { return b.run(cmd.Context()) },
		func(out io.Writer, r *tokenizeReport) error {
			_, err := fmt.Fprint(out, r.text())
			return err
		})
	cmd.AddCommand(&cobra.Command{
		Use:    "replica",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveFakeTokenizer(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	})
	f := cmd.Flags()
	f.IntVar(&b.clients, "clients", 64, "conversations held at once")
	f.IntVar(&b.turns, "turns", 40, "turns of each conversation")
	f.IntVar(&b.tokens, "tokens", 60_000, "tokens of a conversation's last prompt")
	f.IntVar(&b.replicas, "replicas", 4, "replicas that tokenize, 2 ms + 2 us per token each")
	f.IntVar(&b.soak, "soak", 200_000, "distinct prompts for the memory soak")
	f.DurationVar(&b.pause, "pause", 200*time.Millisecond, "time between turns in the run with pauses")
	return cmd
}

func (b tokenizeBench) run(ctx context.Context) (*tokenizeReport, error) {
	began := time.Now()
	r := &tokenizeReport{sizeFigures: sizeFigures{Clients: b.clients, Turns: b.turns, Replicas: b.replicas}}
	r.SoakPrompts, r.PauseMillis = b.soak, millis(b.pause)
	for _, phase := range []func(context.Context, *tokenizeReport) error{b.conversations, b.cpu, b.exact, b.outage, b.soakRun} {
		if err := phase(ctx, r); err != nil {
			return nil, err
		}
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// text is the report for people, the promises next to the figures.
func (r *tokenizeReport) text() string {
	return fmt.Sprintf(`%d conversations of %d turns up to %d tokens, %d replicas
  stage, share of /tokenize in full   %6.3f   (promised: below 0.10; %.2f ms of %.2f ms, p99 %.1f ms)
    of an unloaded full call          %6.3f
    with %v ms between turns         %6.3f
  answered early                      %6.3f   of all turns
  CPU, turn %d over turn 1            %6.2f   (promised: at most 3; %.0f us over %.0f us)
  exact hit                           %6.1f us (promised: at most 20; body parsed again %.1f us; %.0f allocations)
all tokenizers killed
  failed requests                     %6d   (promised: 0; longest stage %.1f ms)
  cached-token share                  %6.3f   instead of %.3f: %.1f points lost (promised: at most 10)
%d distinct prompts
  cache                               %6.1f MiB of %.1f, live heap %.1f MiB more, process %.1f MiB after %.1f before
`, r.Clients, r.Turns, r.Tokens, r.Replicas, r.StageShareOfFull, r.StageMeanMillis, r.FullMeanMillis, r.StageP99Millis,
		r.StageShareOfModel, r.PauseMillis, r.ShareWithPause, r.EarlyShare,
		r.Turns, r.Turn40OverTurn1, r.Turn40CPUMicros, r.Turn1CPUMicros, r.ExactHitMicros, r.ExactHitReadMicros, r.ExactHitAllocs,
		r.FailedWhenDown, r.DownStageMax, r.CachedShareDown, r.CachedShareUp, r.AffinityLost,
		r.SoakPrompts, mebi(r.CacheBytes), mebi(r.CacheLimit), mebi(r.HeapGrowth), mebi(r.RSS), mebi(r.RSSBeforeSoak))
}

func mebi(n int64) float64 { return float64(n) / (1 << 20) }
