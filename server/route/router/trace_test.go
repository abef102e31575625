package router_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/decision"
	"github.com/kvpilot/kvpilot/server/observe/span"
	"github.com/kvpilot/kvpilot/server/route/router/intake"
)

// attribute lists the values of an attribute of the spans with a name, in their order, and how many spans there are.
func (k *traced) attribute(name string, key string, serve func(ctx context.Context)) (values []string, spans int) {
	k.t.Helper()
	ctx, s := k.recorder.Tracer("test").Start(k.t.Context(), "surface")
	serve(ctx)
	s.End()
	k.mu.Lock()
	defer k.mu.Unlock()
	list := slices.SortedFunc(slices.Values(k.got), func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	for _, s := range list {
		if s.Name() != name {
			continue
		}
		spans++
		for _, a := range s.Attributes() {
			if string(a.Key) == key {
				values = append(values, a.Value.String())
			}
		}
	}
	k.got = nil
	return values, spans
}

// Each attempt of a resumed stream counts the chunks of its own replica.
func TestChunksOfAResumedStreamAreThoseOfEachAttempt(t *testing.T) {
	k := startTraced(t, 2, sdktrace.AlwaysSample(), nil)
	k.resuming(1)
	k.inTurn(streaming(hello(), cut), whole(world()))
	got, _ := k.attribute(span.Stream, string(span.Chunks), func(ctx context.Context) {
		if err := k.router.Serve(ctx, chat(asking+"}"), &client{}); err != nil {
			t.Error(err)
		}
	})
	if want := []string{"3", "2"}; !slices.Equal(got, want) {
		t.Errorf("the attempts have %v chunks, want %v", got, want)
	}
}

// Whether the answer streams is not known of a question that has no body, and as the body says of others.
func TestAQuestionsSpanClaimsNoStream(t *testing.T) {
	for name, tc := range map[string]struct {
		question intake.Question
		want     []string
	}{
		"text":     {intake.Question{Model: "m", Input: intake.Input{Text: "a"}}, nil},
		"ids":      {intake.Question{Model: "m", Input: intake.Input{IDs: []uint32{1, 2}}}, nil},
		"a body":   {intake.Question{Input: intake.Input{Body: []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`)}}, []string{"false"}},
		"a stream": {intake.Question{Input: intake.Input{Body: []byte(asking + "}")}}, []string{"true"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := startTraced(t, 1, sdktrace.AlwaysSample(), nil)
			for _, of := range []string{"surface", span.Read} {
				got, spans := k.attribute(of, string(span.Streamed), func(ctx context.Context) {
					q := tc.question
					if _, err := k.router.Choose(ctx, &q); err != nil {
						t.Error(err)
					}
				})
				if spans > 0 && !slices.Equal(got, tc.want) {
					t.Errorf("%s says %v, want %v", of, got, tc.want)
				}
				if spans == 0 && of == "surface" {
					t.Error("nothing is recorded")
				}
			}
		})
	}
}

// A choice that another router made shows the question to it, below the choice, and is asked for as sampled.
func TestTheQuestionToADeciderIsASpan(t *testing.T) {
	sampled := false
	k := startTraced(t, 1, sdktrace.AlwaysSample(), nil)
	k.params.Decider = decide(func(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
		sampled = req.Sampled
		c, err := k.params.Chooser.Choose(ctx, req)
		if err == nil {
			c.Decision.DecidedBy = "b"
		}
		return c, err
	})
	k.resuming(0)
	got, _ := k.attribute(span.Ask, string(span.DecidedBy), func(ctx context.Context) {
		if err := k.router.Serve(ctx, chat(""), &client{}); err != nil {
			t.Error(err)
		}
	})
	if !slices.Equal(got, []string{"b"}) || !sampled {
		t.Errorf("the questions went to %v, sampled: %t; want one to b", got, sampled)
	}
}

// The wait of a program's call for memory is in the span of the wait in the router, also where another router had it wait.
func TestTheWaitForMemoryIsInTheTrace(t *testing.T) {
	for _, by := range []string{"", "b"} {
		k := startTraced(t, 1, sdktrace.AlwaysSample(), nil)
		k.params.Decider = decide(func(ctx context.Context, req *chooser.Request) (*chooser.Choice, error) {
			c, err := k.params.Chooser.Choose(ctx, req)
			if err == nil {
				c.Decision.DecidedBy, c.Decision.Held = by, 50*time.Second
				c.Decision.Memory = &decision.MemoryWait{Tokens: 9100, Free: 800, Before: 3, Waited: 41 * time.Second}
			}
			return c, err
		})
		k.resuming(0)
		for key, want := range map[attribute.Key]string{span.HeldFor: "50", span.MemoryFor: "41", span.MemoryNeeded: "9100", span.MemoryFree: "800", span.ProgramsBefore: "3"} {
			got, _ := k.attribute(span.Hold, string(key), func(ctx context.Context) {
				if err := k.router.Serve(ctx, chat(""), &client{}); err != nil {
					t.Error(err)
				}
			})
			if !slices.Equal(got, []string{want}) {
				t.Errorf("decided by %q: %s is %v, want %s", by, key, got, want)
			}
		}
	}
}
