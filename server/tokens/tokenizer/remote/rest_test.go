package remote

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// A replica that is labelled as another engine is never asked.
func TestOtherEnginesAreNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a", "b", "c", "d")
		for i, engine := range []string{"sglang", "vLLM", "vllm-rust", "TensorRT"} {
			rs[i].Labels = map[string]string{replica.LabelEngine: engine}
		}
		for range 20 {
			if _, err := ask(t, p, rs); err != nil {
				t.Fatal(err)
			}
		}
		if f.count("a")+f.count("d") > 0 || f.count("b") == 0 || f.count("c") == 0 {
			t.Errorf("asked: %v", f.asked)
		}
		if _, err := ask(t, p, rs[:1]); kind(err) != "no_endpoint" {
			t.Errorf("without another: %v", err)
		}
		p.wg.Wait()
	})
}

// A Retry-After of an hour keeps questions away for a minute, and a probe that is answered ends it.
func TestALongRetryAfterEnds(t *testing.T) {
	for _, probes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet()
			cfg := DefaultConfig()
			if !probes {
				cfg.HealthPeriod = 0
			}
			p := New(cfg, Params{Sender: f})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.Run(ctx) }()
			f.set("a", answer(503, `{}`, "Retry-After", "3600"))
			rs := replicas("a")
			if _, err := ask(t, p, rs); kind(err) != "status" {
				t.Fatal(err)
			}
			f.set("a", okay)
			began := time.Now()
			for {
				if _, err := ask(t, p, rs); err == nil {
					break
				}
				if time.Since(began) > 2*time.Minute {
					t.Fatal("the replica is not asked again")
				}
				time.Sleep(time.Second)
			}
			if took := time.Since(began); probes && took > 31*time.Second || !probes && (took < 59*time.Second || took > 61*time.Second) {
				t.Errorf("probes %v: asked again after %v", probes, took)
			}
			cancel()
			<-done
		})
	}
}

// A route that is missing is asked for again after a second, and then less and less often, until it is there.
func TestAMissingRouteIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		f.set("a", answer(404, `{"detail":"Not Found"}`))
		rs := replicas("a")
		var at []time.Duration
		began, last := time.Now(), 0
		for time.Since(began) < 5*time.Minute {
			_, _ = ask(t, p, rs)
			if n := f.count("a"); n > last {
				last = n
				at = append(at, time.Since(began))
			}
			time.Sleep(500 * time.Millisecond)
		}
		if len(at) < 8 || len(at) > 12 || at[1] != time.Second || at[len(at)-1]-at[len(at)-2] > mostCool+time.Second {
			t.Errorf("asked at %v", at)
		}
		f.set("a", okay)
		time.Sleep(mostCool)
		for range 2 {
			if _, err := ask(t, p, rs); err != nil {
				t.Error(err)
			}
		}
		f.set("a", answer(404, `{"detail":"Not Found"}`))
		_, _ = ask(t, p, rs)
		f.set("a", okay)
		time.Sleep(time.Second)
		if _, err := ask(t, p, rs); err != nil {
			t.Errorf("after one answer it rests for longer than a second: %v", err)
		}
		p.wg.Wait()
	})
}

// A proxy that has no route at all for a while does not decide which routes the replica behind it has.
func TestAMissingRouteSaysNothingAboutRendering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		rs := replicas("a")
		rs[0].Version = "0.30.0"
		job := &Job{Op: OpPrompt, Model: "m", Prompt: &prompt.Prompt{API: prompt.APICompletions, Kind: prompt.KindText, Text: "x", Body: []byte(`{"prompt":"x"}`)}}
		f.set("a", answer(404, `{"detail":"Not Found"}`))
		_, _ = p.Do(t.Context(), rs, job)
		f.set("a", answer(200, `[{"token_ids":[1,2]}]`))
		time.Sleep(2 * time.Second)
		if a, err := p.Do(t.Context(), rs, job); err != nil || !a.Rendered {
			t.Errorf("Do() = %+v, %v; want a rendered answer", a, err)
		}
		p.wg.Wait()
	})
}

// What one replica refuses and another one answers is no fault of the client, and the one that refuses is left alone for a while.
func TestARefusalIsHeardBySecondOpinion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := New(DefaultConfig(), Params{Sender: f})
		refuses := answer(400, `{"error":{"message":"no chat template"}}`)
		f.set("a", refuses)
		rs := replicas("a", "b")
		for range 20 {
			if _, err := ask(t, p, rs); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.count("a"); n != 1 {
			t.Errorf("the replica that refuses was asked %d times", n)
		}
		f.set("b", refuses)
		time.Sleep(2 * time.Second)
		if _, err := ask(t, p, rs); kind(err) != "client_fault" {
			t.Errorf("both refuse: %v", err)
		}
		f.set("b", answer(500, `{}`))
		if _, err := ask(t, p, rs); kind(err) != "client_fault" {
			t.Errorf("the other one fails: %v", err)
		}
		p.wg.Wait()
	})
}
