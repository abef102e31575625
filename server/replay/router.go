package replay

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kvpilot/kvpilot/server/blockhash"
	"github.com/kvpilot/kvpilot/server/chooser"
	"github.com/kvpilot/kvpilot/server/decision"
	"github.com/kvpilot/kvpilot/server/kvblock"
	"github.com/kvpilot/kvpilot/server/load"
	"github.com/kvpilot/kvpilot/server/replica"
)

// router is the product's own choice in virtual time.
type router struct {
	sim      *sim
	chooser  *chooser.Chooser
	index    *mapIndex
	replicas []*replica.Replica
	choices  []*chooser.Choice
	requests []chooser.Request
	epoch    time.Time
	wake     float64
	texts    bool
	refused  int
}

func newRouter(s *sim, cfg chooser.Config, seed uint64, bias float64) (*router, error) {
	r := &router{sim: s, epoch: time.Unix(1_000_000_000, 0), choices: make([]*chooser.Choice, len(s.trace.Calls)), requests: make([]chooser.Request, len(s.trace.Calls))}
	now := func() time.Time { return r.epoch.Add(time.Duration(s.now * float64(time.Second))) }
	bcfg := load.DefaultConfig()
	bcfg.Remembered = 16
	book, err := load.New(bcfg, load.Params{Now: now})
	if err != nil {
		return nil, err
	}
	r.index = newMapIndex(s.trace.block)
	r.chooser, err = chooser.New(cfg, chooser.Params{Index: r.index, Book: book, Now: now, Seed: seed, PaceBias: bias})
	if err != nil {
		return nil, err
	}
	for i, e := range s.engines {
		rep := &replica.Replica{
			ID: replica.ID("r" + strconv.Itoa(i)), State: replica.StateReady, Slots: []replica.Slot{replica.Slot(i)},
			Models: []replica.Model{{ID: "m"}}, BlockSize: s.trace.block, Blocks: len(e.cache.entries) - 1, MaxBatchedTokens: e.profile.Budget,
		}
		r.replicas = append(r.replicas, rep)
		book.AddRank(replica.Slot(i))
		r.chooser.AddRank(replica.Slot(i), rep, 0)
	}
	r.texts = cfg.Policy == decision.PrefixAffinity
	return r, nil
}

func (r *router) arrive(call int) {
	c := &r.sim.trace.Calls[call]
	hashes := r.sim.trace.hashes[call]
	full := min(len(hashes), c.In/r.sim.trace.block)
	req := &r.requests[call]
	*req = chooser.Request{
		ID: strconv.Itoa(call), Model: "m", Replicas: r.replicas, PromptTokens: c.In, Session: "s" + strconv.Itoa(c.Session), ExpectedOutput: c.Out,
		Hashes: func(int) []blockhash.Hash { return hashes[:full] },
	}
	if r.texts {
		req.Text = textOf(c.IDs[:min(len(c.IDs), (c.In+r.sim.trace.Chunk-1)/r.sim.trace.Chunk)])
	}
	r.chooser.Submit(req, time.Time{}, func(choice *chooser.Choice, err error) {
		if err != nil {
			panic(fmt.Sprintf("call %d: %v", call, err))
		}
		r.choices[call] = choice
		r.sim.send(call, int(choice.Slot))
	})
	r.plan()
}

// plan has the chooser's clock tick when it asks for it.
func (r *router) plan() {
	at, ok := r.chooser.NextWake()
	if !ok {
		return
	}
	t := max(at.Sub(r.epoch).Seconds(), r.sim.now+1e-6)
	if r.wake > r.sim.now && r.wake <= t {
		return
	}
	r.wake = t
	r.sim.schedule(event{at: t, kind: eventDo, do: func() {
		if r.wake == t {
			r.wake = 0
			r.chooser.Tick()
			r.plan()
		}
	}})
}

func (r *router) firstToken(call, _ int) {
	r.choices[call].FirstToken()
	r.plan()
}

func (r *router) finished(call, _ int) {
	c := &r.sim.trace.Calls[call]
	r.choices[call].Progress(c.Out)
	r.choices[call].Release(chooser.Result{End: decision.EndCompleted, PromptTokens: c.In, OutputTokens: c.Out, CachedTokens: r.sim.cached[call]})
	r.choices[call] = nil
	r.plan()
}

func (r *router) stored(e int, keys []blockhash.Hash, from, to int) { r.index.store(e, keys[from:to]) }
func (r *router) removed(e int, keys []blockhash.Hash)              { r.index.remove(e, keys) }

// textOf writes the chunks' ids as the text that stands for them.
func textOf(ids []uint64) string {
	b := make([]byte, 0, 8*len(ids))
	for _, id := range ids {
		b = strconv.AppendUint(b, id+1<<24, 36)
		b = append(b, ' ')
	}
	return string(b)
}

// mapIndex is a stand-in
type mapIndex struct {
	block  int
	held   map[blockhash.Hash][]uint64
	belief map[blockhash.Hash][]belief
}

type belief struct {
	slot replica.Slot
	till time.Time
}

func newMapIndex(block int) *mapIndex {
	return &mapIndex{block: block, held: map[blockhash.Hash][]uint64{}}
}

func (m *mapIndex) store(e int, keys []blockhash.Hash) {
	for _, k := range keys {
		w := m.held[k]
		for len(w) <= e/64 {
			w = append(w, 0)
		}
		w[e/64] |= 1 << (e % 64)
		m.held[k] = w
	}
}

func (m *mapIndex) remove(e int, keys []blockhash.Hash) {
	for _, k := range keys {
		if w := m.held[k]; len(w) > e/64 {
			w[e/64] &^= 1 << (e % 64)
			any := uint64(0)
			for _, x := range w {
				any |= x
			}
			if any == 0 {
				delete(m.held, k)
			}
		}
	}
}

func (m *mapIndex) Match(dst []chooser.Overlap, hashes []blockhash.Hash) []chooser.Overlap {
	if len(hashes) == 0 {
		return dst
	}
	alive := append([]uint64(nil), m.held[hashes[0]]...)
	depth := map[int]int{}
	for i := 1; i <= len(hashes); i++ {
		var w []uint64
		if i < len(hashes) {
			w = m.held[hashes[i]]
		}
		any := uint64(0)
		for j := range alive {
			var x uint64
			if j < len(w) {
				x = w[j]
			}
			gone := alive[j] &^ x
			for b := 0; gone != 0; b++ {
				if gone&(1<<b) != 0 {
					depth[j*64+b] = i
					gone &^= 1 << b
				}
			}
			alive[j] &= x
			any |= alive[j]
		}
		if any == 0 {
			break
		}
	}
	for s, d := range depth {
		dst = append(dst, chooser.Overlap{Slot: replica.Slot(s), GPU: uint32(d)})
	}
	return dst
}

func (m *mapIndex) Routed(slot replica.Slot, hashes []blockhash.Hash, _ time.Time) {
	m.store(int(slot), hashes)
}
func (m *mapIndex) BlockSize(replica.Slot) int           { return m.block }
func (m *mapIndex) State(replica.Slot) kvblock.FeedState { return kvblock.FeedExact }
