package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/choose/holdqueue"
)

// tenantTrace makes a trace of callers that each send the next request when the last one is answered, and of an
// idle tenant that sends a prompt of idleIn tokens now and then.
func tenantTrace(loops map[string]int, calls, in, out, idle, idleIn int, every float64) *Trace {
	t := &Trace{Name: "tenants", Chunk: 512, Closed: true}
	id, session := uint64(1), 0
	ids := func(tokens int) []uint64 {
		list := make([]uint64, (tokens+511)/512)
		for i := range list {
			list[i] = id
			id++
		}
		return list
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"a", "b"} {
		for range loops[name] {
			prev := -1
			for i := range calls {
				tokens := in/2 + dice.IntN(in)
				c := Call{In: tokens, Out: out, IDs: ids(tokens), Session: session, Prev: prev, Tenant: name}
				if i == 0 {
					c.At = dice.Float64()
				}
				prev = len(t.Calls)
				t.Calls = append(t.Calls, c)
			}
			session++
		}
	}
	for i := range idle {
		t.Calls = append(t.Calls, Call{At: 20 + every*(float64(i)+dice.Float64()), In: idleIn, Out: out, IDs: ids(idleIn), Session: session, Prev: -1, Tenant: "c"})
		session++
	}
	return t
}

// weights are the tenants' shares.
type weights map[string]float64

func (w weights) Weight(tenant string) float64 { return w[tenant] }

func playTenants(t *testing.T, trace *Trace, replicas int, shares holdqueue.Shares) *sim {
	t.Helper()
	p := Profiles()[0]
	j := &job{work: newWorkload(trace, 512), speed: 1, seed: 1, shares: shares}
	j.options.Profile, j.options.Replicas, j.options.Block, j.options.PaceBias = p, replicas, 512, 1
	s := newSim(j.work, newEngines(&p, Hardware{}, replicas, 512), 1, 1)
	s.delays = LocalDelays()
	cfg := chooser.DefaultConfig()
	cfg.Queue.MaxWait = 0
	r, err := newService(s, cfg, j)
	if err != nil {
		t.Fatal(err)
	}
	s.router = r
	s.run(0)
	if err := r.err(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Item 9, with the whole choice over engines in virtual time: two tenants of weights 1 and 3 have more to do than
// four replicas can, and a third sends a prompt now and then. What the third waits longer than alone is bounded by
// what an engine cannot stop: the step that it is in, the full step that waits behind it, and that its own last step
// is filled up with others' prompts.
func TestTenantsShareAFleetByWeight(t *testing.T) {
	plays(t)
	const replicas, prompt = 4, 4096
	flood := map[string]int{"a": 40 * replicas, "b": 40 * replicas}
	idle := func(s *sim) (p50, p99 float64) {
		var w []float64
		for i := range s.trace.Calls {
			if c := &s.trace.Calls[i]; c.Prev < 0 && c.At >= 20 { // the two begin in the first second
				w = append(w, s.first[i]-s.arrived[i])
			}
		}
		slices.Sort(w)
		return w[len(w)/2], w[len(w)*99/100]
	}
	shares := weights{"a": 1, "b": 3}
	alone50, alone99 := idle(playTenants(t, tenantTrace(nil, 0, 4096, 40, 120, prompt, 2), replicas, shares))
	s := playTenants(t, tenantTrace(flood, 10, 4096, 40, 120, prompt, 2), replicas, shares)
	p50, p99 := idle(s)

	last := map[string]float64{}
	for i := range s.trace.Calls {
		c := &s.trace.Calls[i]
		last[c.Tenant] = max(last[c.Tenant], s.done[i])
	}
	end := 0.9 * min(last["a"], last["b"]) // after that, one of the two has nothing left to send
	tokens := map[string]float64{}
	for i := range s.trace.Calls {
		if c := &s.trace.Calls[i]; s.done[i] > 20 && s.done[i] < end {
			tokens[c.Tenant] += float64(c.In + c.Out)
		}
	}
	ratio := tokens["b"] / tokens["a"]
	if math.Abs(ratio/3-1) > 0.05 {
		t.Errorf("the shares are 1:%.3f of the tokens, want 1:3 within 5 %%", ratio)
	}
	timing := Profiles()[0]
	step := float64(timing.MaxBatchedTokens)/timing.Timing.PrefillRate + 0.03
	if p99 > alone99+3*step {
		t.Errorf("p99 of the third's first token is %.3f s, alone %.3f s: more than three steps of %.3f s longer", p99, alone99, step)
	}

	one := tenantTrace(flood, 10, 4096, 40, 120, prompt, 2) // and as it is when nobody is told apart
	for i := range one.Calls {
		one.Calls[i].Tenant = ""
	}
	_, unshared := idle(playTenants(t, one, replicas, nil))
	if unshared < 4*p99 {
		t.Errorf("p99 of the third's first token is %.3f s even without sharing: the test does not flood", unshared)
	}
	t.Logf("tokens 1:%.3f; first token of the third: alone p50 %.3f p99 %.3f s, beside the two p50 %.3f p99 %.3f s, p99 without tenants %.1f s",
		ratio, alone50, alone99, p50, p99, unshared)
}
