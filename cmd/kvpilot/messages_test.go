package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvpilot/kvpilot/sim/replay"
	"github.com/kvpilot/kvpilot/test/programs"
)

func TestUnknownCommandsAreErrors(t *testing.T) {
	for _, line := range []string{"foo", "bench foo", "key foo", "config foo", "replicas foo", "completion foo", "help foo", "help key foo", "serve foo"} {
		err := run(t.Context(), strings.Fields(line), nil, io.Discard, io.Discard)
		if err == nil {
			t.Errorf("kvpilot %s: no error", line)
		}
	}
	for _, line := range []string{"", "key", "config", "completion", "help", "help key new", "completion bash"} {
		var out bytes.Buffer
		if err := run(t.Context(), strings.Fields(line), nil, &out, io.Discard); err != nil || out.Len() == 0 {
			t.Errorf("kvpilot %s: %v, %q", line, err, out.String())
		}
	}
}

func TestMistypedNamesAreExplained(t *testing.T) {
	for line, want := range map[string]string{
		"srve":                        "\tserve",
		"key nwe":                     `unknown command "nwe" for "kvpilot key"; did you mean new?`,
		"help key nwe":                `unknown command "nwe" for "kvpilot key"; did you mean new?`,
		"help srve":                   "\tserve",
		"config version":              `did you mean versions?`,
		"serve http://10.0.0.7:8000":  `kvpilot serve takes no arguments, not "http://10.0.0.7:8000"; did you mean --replica http://10.0.0.7:8000?`,
		"top now":                     `kvpilot top takes no arguments, not "now"`,
		"serve --replcia http://a:1":  "unknown flag: --replcia; did you mean --replica? (kvpilot serve --help lists the flags)",
		"serve --check_confg":         "did you mean --check-config?",
		"serve -config x":             `unknown shorthand flag: 'c' in -config; did you mean --config?`,
		"serve --listen.http :80":     "did you mean --set listen.http=VALUE?",
		"serve --listen-htpp=:80":     "did you mean --set listen.http=VALUE?",
		"serve --log-level debug":     "did you mean --set telemetry.log_level=VALUE?",
		"serve --set chooser.polcy=x": "--set chooser.polcy: no such setting; did you mean chooser.policy?",
		"serve --frobnicate":          "unknown flag: --frobnicate (kvpilot serve --help lists the flags)",
		"replicas --time-out 1s":      "did you mean --timeout?",
		"doctor --no-snd":             "did you mean --no-send?",
		"key new --rols infer":        "did you mean --roles?",
	} {
		err := run(t.Context(), strings.Fields(line), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("kvpilot %s: %v; want %q", line, err, want)
		}
	}
}

// A name means one thing in all commands: the same type of value and, where it is the same thing, the same words.
func TestFlagsHaveOneNameForOneThing(t *testing.T) {
	instead := map[string]string{"replays": "replay", "json": "output"}
	types := map[string]string{}
	each(newRootCommand(nil, io.Discard, io.Discard), func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if better := instead[f.Name]; better != "" && !f.Hidden {
				t.Errorf("%s --%s: other commands call it --%s", c.CommandPath(), f.Name, better)
			}
			kind := strings.TrimSuffix(strings.TrimSuffix(f.Value.Type(), "Array"), "Slice")
			if before := types[f.Name]; before != "" && before != kind {
				t.Errorf("%s --%s is a %s, elsewhere a %s", c.CommandPath(), f.Name, kind, before)
			}
			types[f.Name] = kind
			if first, _, _ := strings.Cut(f.Usage, " "); f.Usage == "" || strings.HasSuffix(f.Usage, ".") || first != strings.ToLower(first) && !slices.Contains([]string{"HTTP", "ZMQ", "API", "URL", "LoRA", "YAML", "JSON", "KV", "TLS", "TTFT"}, first) && !strings.HasPrefix(first, "vLLM") {
				t.Errorf("%s --%s: %q must begin with a small letter and end without a stop", c.CommandPath(), f.Name, f.Usage)
			}
		})
	})
}

func each(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, below := range c.Commands() {
		each(below, do)
	}
}

func TestFormerFlagsStillWork(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), strings.Fields("replay --generate hotdoc --requests 200 --replicas 2 --policies random --seeds 1 --no-saturation --quiet --json"), nil, &out, io.Discard); err != nil || !strings.HasPrefix(out.String(), "{") {
		t.Errorf("%v %.100s", err, out.String())
	}
	var c cobra.Command
	each(newRootCommand(nil, io.Discard, io.Discard), func(at *cobra.Command) {
		if at.Name() == "demo" {
			c = *at
		}
	})
	if err := c.ParseFlags([]string{"--replicas", "http://a,http://b", "--replays", "tcp://{host}:1"}); err != nil || c.Flag("replica").Value.String() != "[http://a,http://b]" || c.Flag("replay").Value.String() != "[tcp://{host}:1]" {
		t.Errorf("demo --replicas: %v", err)
	}
}

func TestServeSaysWhatToDoAboutReplicas(t *testing.T) {
	for flags, want := range map[string]string{
		"":                                 "no replicas are configured: set --replica",
		" --replica http://127.0.0.1:1/v1": `a setting is probably wrong: registry.replicas[0].url: \"http://127.0.0.1:1/v1\" ends in /v1: remove /v1`,
	} {
		t.Run(want, func(t *testing.T) { servesWithWarning(t, flags, want) })
	}
}

func servesWithWarning(t *testing.T, flags, want string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &programs.Log{}
	args := strings.Fields("serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --admin 127.0.0.1:0 --set listen.start_wait=0s" + flags)
	err := run(ctx, args, nil, io.Discard, writerFunc(func(text []byte) (int, error) {
		if bytes.Contains(text, []byte("msg=serving")) {
			stop()
		}
		return log.Write(text)
	}))
	if err != nil || !strings.Contains(log.String(), want) {
		t.Errorf("%v\n%s", err, log)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// Another seed is another trace, a smaller cache holds less, and without programs none waits for memory.
func TestReplaysOfOtherTraces(t *testing.T) {
	play := func(args string) (r struct {
		AtOnce   int                            `json:"programs_at_once"`
		Policies map[string]replay.PolicyReport `json:"policies"`
	}) {
		var out bytes.Buffer
		base := "replay --generate agent --requests 150 --replicas 1 --memory 3 --block 512 --policies predicted-ttft --seeds 1 --patience 0 --quiet -o json "
		if err := run(t.Context(), strings.Fields(base+args), nil, &out, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	of := func(args string) replay.Numbers { return play(args).Policies["predicted-ttft"].Numbers }
	plain, again, other := of(""), of("--trace-seed 1"), of("--trace-seed 2")
	if plain.AnswerMean != again.AnswerMean || plain.AnswerMean == other.AnswerMean {
		t.Errorf("answers take %v, with the same seed %v, with another one %v", plain.AnswerMean, again.AnswerMean, other.AnswerMean)
	}
	if without := of("--no-programs"); without.HitRate >= plain.HitRate {
		t.Errorf("%.3f from the cache without programs, %.3f with them", without.HitRate, plain.HitRate)
	}
	if usual, large := play("").AtOnce, play("--cache-tokens 1920000").AtOnce; large < 3*usual-1 || large > 3*usual+1 {
		t.Errorf("%d programs take three times the memory, %d three times as much of it", usual, large)
	}
}
