package replay

import (
	"math"
	"slices"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
)

// Ready makes a trace ready for engines with blocks of block tokens.
func ready(t *Trace, block int) *workload {
	w := &workload{Trace: t, block: block, hashes: make([][]blockhash.Hash, len(t.Calls))}
	per := t.Chunk / block
	tokens := make([]uint32, block)
	for i := range t.Calls {
		c := &t.Calls[i]
		n := min((c.In+c.Out)/block, len(c.IDs)*per)
		list := make([]blockhash.Hash, n)
		var parent blockhash.Hash
		for j := range list {
			id := c.IDs[j/per]
			for k := range tokens {
				tokens[k] = uint32(id*2654435761) + uint32(j%per*block+k)
			}
			parent = blockhash.Next(parent, blockhash.Local(tokens, 1337))
			list[j] = parent
		}
		w.hashes[i] = list
	}
	return w
}

func newEngines(p *Profile, n, block int) []*engine {
	list := make([]*engine, n)
	for i := range list {
		list[i] = &engine{profile: p, block: block, slot: i, cache: newBlockCache(p.CacheTokens / block)}
	}
	return list
}

type numbers struct {
	Mean, P50, P90, P99, Hit, T98, Finish float64
	Imbalance                             float64
}

func (s *sim) numbers() numbers {
	ttft := make([]float64, 0, len(s.first))
	type ft struct {
		at float64
		in int
	}
	var firsts []ft
	var sum float64
	var in, cached int
	for i, f := range s.first {
		if math.IsNaN(f) {
			continue
		}
		ttft = append(ttft, f-s.arrived[i])
		sum += f - s.arrived[i]
		in += s.trace.Calls[i].In
		cached += s.cached[i]
		firsts = append(firsts, ft{f, s.trace.Calls[i].In})
	}
	slices.Sort(ttft)
	slices.SortFunc(firsts, func(a, b ft) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	q := func(p float64) float64 { return ttft[min(len(ttft)-1, int(p*float64(len(ttft))))] }
	n := numbers{Mean: sum / float64(len(ttft)), P50: q(.5), P90: q(.9), P99: q(.99), Hit: float64(cached) / float64(in), Finish: s.finish}
	seen := 0
	for _, f := range firsts {
		if seen += f.in; float64(seen) >= 0.98*float64(in) {
			n.T98 = f.at
			break
		}
	}
	var most, all float64
	for _, e := range s.engines {
		most = max(most, e.busy)
		all += e.busy
	}
	if all > 0 {
		n.Imbalance = most / (all / float64(len(s.engines)))
	}
	return n
}

func playRouter(w *workload, p *Profile, n int, speed float64, cfg chooser.Config, seed uint64) (numbers, error) {
	s := newSim(w, newEngines(p, n, w.block), speed, seed)
	r, err := newRouter(s, cfg, seed, 1)
	if err != nil {
		return numbers{}, err
	}
	s.router = r
	s.run(nil)
	return s.numbers(), nil
}

// oracle shares one cache among all engines and sends each call to the one with the least prefill left.
type oracle struct {
	sim *sim
}

func playOracle(w *workload, p *Profile, n int, speed float64, seed uint64) numbers {
	es := newEngines(p, n, w.block)
	pool := newBlockCache(p.CacheTokens / w.block * n)
	for _, e := range es {
		e.cache = pool
	}
	s := newSim(w, es, speed, seed)
	s.router = &oracle{sim: s}
	s.run(nil)
	return s.numbers()
}

func (o *oracle) arrive(call int) {
	best, least := 0, math.Inf(1)
	for i, e := range o.sim.engines {
		var left float64
		for _, q := range e.filling {
			left += e.profile.prefill(float64(q.computed), float64(q.in-q.computed))
		}
		for _, q := range e.waiting {
			hit := e.cache.match(q.keys[:min(len(q.keys), q.in/e.block)]) * e.block
			left += e.profile.prefill(float64(hit), float64(q.in-hit))
		}
		left += 1e-6 * float64(len(e.decoding))
		if left < least {
			best, least = i, left
		}
	}
	o.sim.send(call, best)
}
func (o *oracle) firstToken(int, int)                    {}
func (o *oracle) finished(int, int)                      {}
func (o *oracle) stored(int, []blockhash.Hash, int, int) {}
func (o *oracle) removed(int, []blockhash.Hash)          {}
