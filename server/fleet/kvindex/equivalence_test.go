package kvindex_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvindex"
)

// node is a block of a tree of prompts; its key is computed from the whole prompt, not from
// events.
type node struct {
	id     int
	parent *node
	ns     blockhash.Namespace
	tokens []uint32 // its own
	items  []kvblock.Item
	key    blockhash.Hash
}

func (n *node) path() []*node {
	var list []*node
	for ; n != nil; n = n.parent {
		list = append(list, n)
	}
	slices.Reverse(list)
	return list
}

// tree makes nodes under several namespaces, with branches and multimodal items.
func tree(dice *rand.Rand, n int) []*node {
	spaces := []blockhash.Namespace{{}, {}, {}, {Adapter: "lora"}, {Salt: "a"}, {Salt: "b"}, {Adapter: "lora", Salt: "a"}}
	var list []*node
	for i := range n {
		x := &node{id: i}
		if i > 10 && dice.IntN(10) > 0 {
			x.parent = list[max(0, len(list)-1-int(dice.ExpFloat64()*3))]
			x.ns = x.parent.ns
		} else {
			x.ns = spaces[dice.IntN(len(spaces))]
		}
		for range size {
			x.tokens = append(x.tokens, dice.Uint32N(50))
		}
		x.tokens[0] = uint32(1000 + i)
		if dice.IntN(8) == 0 {
			x.items = []kvblock.Item{{ID: fmt.Sprint("image", dice.IntN(3)), Offset: dice.IntN(4), HasOffset: true}}
		}
		var tokens []uint32
		var items []blockhash.Item
		for at, p := range x.path() {
			tokens = append(tokens, p.tokens...)
			for _, item := range p.items {
				items = append(items, blockhash.Item{ID: item.ID, Start: at * size, End: at*size + size})
			}
		}
		keys := blockhash.ChainItems(nil, tokens, size, x.ns, items)
		x.key = keys[len(keys)-1]
		list = append(list, x)
	}
	return list
}

// copies is what the simplest correct index knows about a block of one rank and tier.
type copies struct {
	refs  int
	keyed bool
}

// model is the simplest correct index: maps and loops.
type model struct {
	ranks [][kvblock.Tiers]map[*node]*copies
	life  []uint64
}

func newModel(ranks int) *model {
	m := &model{ranks: make([][kvblock.Tiers]map[*node]*copies, ranks), life: make([]uint64, ranks)}
	for r := range m.ranks {
		m.reset(r)
	}
	return m
}

func (m *model) reset(r int) {
	for t := range m.ranks[r] {
		m.ranks[r][t] = map[*node]*copies{}
	}
}

// name is the rank's own name of a block; a restart changes all names.
func (m *model) name(r int, n *node) kvblock.EngineHash {
	return kvblock.EngineHash(uint64(n.id+1)*0x1234567 ^ uint64(r)<<40 ^ m.life[r]<<50)
}

func (m *model) keyed(r int, t kvblock.Tier, n *node) bool {
	c := m.ranks[r][t][n]
	return c != nil && c.keyed
}

func (m *model) keyedAnywhere(r int, n *node) bool {
	return m.keyed(r, 0, n) || m.keyed(r, 1, n) || m.keyed(r, 2, n)
}

// store counts a run of blocks. described is false for placeholders.
func (m *model) store(r int, t kvblock.Tier, run []*node, described bool) {
	known := described && (run[0].parent == nil || m.keyedAnywhere(r, run[0].parent))
	keys := make([]bool, len(run)) // before anything changes
	for i, n := range run {
		keys[i] = known || m.keyedAnywhere(r, n)
	}
	for i, n := range run {
		c := m.ranks[r][t][n]
		if c == nil {
			c = &copies{}
			m.ranks[r][t][n] = c
		}
		c.refs++
		c.keyed = c.keyed || keys[i]
		if t == kvblock.TierGPU && keys[i] {
			for other := range m.ranks[r] {
				if c := m.ranks[r][other][n]; c != nil {
					c.keyed = true
				}
			}
		}
	}
}

func (m *model) remove(r int, t kvblock.Tier, n *node) {
	if c := m.ranks[r][t][n]; c != nil {
		if c.refs--; c.refs == 0 {
			delete(m.ranks[r][t], n)
		}
	}
}

// leads returns what one rank holds of a path in one tier, and whether that has no holes.
func (m *model) lead(r int, t kvblock.Tier, path []*node) (int, bool) {
	lead, whole := 0, true
	for i, n := range path {
		if m.keyed(r, t, n) {
			whole = whole && i == lead
			lead = i + 1
		}
	}
	return lead, whole
}

// world drives an index and the model with the same events.
type world struct {
	t     *testing.T
	dice  *rand.Rand
	nodes []*node
	model *model
	ix    *kvindex.Index
}

func (w *world) store(r int) {
	path := w.nodes[w.dice.IntN(len(w.nodes))].path()
	from := w.dice.IntN(len(path))
	if w.dice.IntN(3) > 0 { // mostly what the rank does not hold yet, as engines do
		for from = 0; from < len(path)-1 && w.model.keyed(r, 0, path[from]); from++ {
		}
	}
	run := path[from:]
	tier := kvblock.Tier(0)
	if w.dice.IntN(4) == 0 {
		tier = kvblock.Tier(w.dice.IntN(kvblock.Tiers))
	}
	ev := &kvblock.Stored{Tier: tier}
	described := tier == 0 || w.dice.IntN(2) == 0
	for _, n := range run {
		ev.Hashes = append(ev.Hashes, w.model.name(r, n))
		if described {
			ev.BlockSize = size
			ev.Tokens = append(ev.Tokens, n.tokens...)
			ev.Items = append(ev.Items, n.items)
			ev.Adapter = n.ns.Adapter
		}
	}
	if described && from > 0 {
		ev.Parent, ev.HasParent = w.model.name(r, path[from-1]), true
	} else if described {
		ev.Salt = run[0].ns.Salt
	}
	w.ix.Store(replica.Slot(r), ev)
	w.model.store(r, tier, run, described)
}

func (w *world) remove(r int) {
	t := kvblock.Tier(w.dice.IntN(kvblock.Tiers))
	ev := &kvblock.Removed{Tier: t}
	for range 1 + w.dice.IntN(20) {
		n := w.nodes[w.dice.IntN(len(w.nodes))]
		if held := w.model.ranks[r][t]; len(held) > 0 && w.dice.IntN(10) > 0 {
			list := make([]*node, 0, len(held))
			for n := range held {
				list = append(list, n)
			}
			slices.SortFunc(list, func(a, b *node) int { return a.id - b.id })
			n = list[w.dice.IntN(len(list))]
			if w.dice.IntN(2) == 0 {
				n = list[len(list)-1] // leaves have the highest numbers
			}
		}
		ev.Hashes = append(ev.Hashes, w.model.name(r, n))
		w.model.remove(r, t, n)
	}
	w.ix.Remove(replica.Slot(r), ev)
}

func (w *world) step() {
	r := w.dice.IntN(len(w.model.ranks))
	slot := replica.Slot(r)
	switch w.dice.IntN(200) {
	case 0: // a new engine life
		w.model.life[r]++
		w.model.reset(r)
		w.ix.Reset(slot)
	case 1:
		t := kvblock.Tier(w.dice.IntN(kvblock.Tiers))
		w.model.ranks[r][t] = map[*node]*copies{}
		w.ix.Clear(slot, t, false)
	case 2:
		w.model.reset(r)
		w.ix.Clear(slot, 0, true)
	case 3: // another rank takes the slot
		w.model.life[r]++
		w.model.reset(r)
		w.ix.RemoveRank(slot)
		if err := w.ix.AddRank(slot, kvindex.RankInfo{BlockSize: size}); err != nil {
			w.t.Fatal(err)
		}
		w.ix.SetState(slot, kvblock.FeedExact)
	default:
		if w.dice.IntN(5) < 3 {
			w.store(r)
		} else {
			w.remove(r)
		}
	}
}

// check compares everything that the index says with the model.
func (w *world) check() {
	w.t.Helper()
	for range 20 {
		path := w.nodes[w.dice.IntN(len(w.nodes))].path()
		hashes := make([]blockhash.Hash, len(path))
		for i, n := range path {
			hashes[i] = n.key
		}
		for i, block := range w.ix.Path(hashes) {
			for t := range kvblock.Tier(kvblock.Tiers) {
				var want []replica.Slot
				for r := range w.model.ranks {
					if w.model.keyed(r, t, path[i]) {
						want = append(want, replica.Slot(r))
					}
				}
				if !slices.Equal(block.Tiers[t], want) {
					w.t.Fatalf("block %d of %d in tier %v: held by %v, want %v", i, len(path), t, block.Tiers[t], want)
				}
			}
		}
		w.checkMatch(path, hashes)
	}
	w.checkCounts()
}

func (w *world) checkMatch(path []*node, hashes []blockhash.Hash) {
	w.t.Helper()
	got := match(w.ix, hashes)
	for i := 1; i < len(got); i++ {
		if got[i].Slot == got[i-1].Slot {
			w.t.Fatalf("Match() names slot %d twice", got[i].Slot)
		}
	}
	for r := range w.model.ranks {
		o := kvindex.Overlap{Slot: replica.Slot(r)}
		if i := slices.IndexFunc(got, func(o kvindex.Overlap) bool { return int(o.Slot) == r }); i >= 0 {
			o = got[i]
		}
		gpu, whole := w.model.lead(r, 0, path)
		n := int(o.GPU)
		switch {
		case whole && n != gpu:
			w.t.Fatalf("rank %d: %d blocks on the GPU, want %d", r, n, gpu)
		case n > 0 && (!w.model.keyed(r, 0, path[0]) || !w.model.keyed(r, 0, path[n-1])):
			w.t.Fatalf("rank %d: %d blocks on the GPU, and the first or the last of them is not held", r, n)
		case n < len(path) && w.model.keyed(r, 0, path[n]) && (n > 0 || w.model.keyed(r, 0, path[0])):
			w.t.Fatalf("rank %d: %d blocks on the GPU, but the next one is held as well", r, n)
		}
		for _, c := range []struct {
			tier kvblock.Tier
			from int
			n    uint32
		}{{1, n, o.CPU}, {2, n + int(o.CPU), o.Disk}} {
			if c.n > 0 && (!w.model.keyed(r, c.tier, path[c.from]) || !w.model.keyed(r, c.tier, path[c.from+int(c.n)-1])) {
				w.t.Fatalf("rank %d: %d blocks in tier %v from %d on, and the first or last is not held", r, c.n, c.tier, c.from)
			}
			if c.n == 0 && c.from < len(path) && w.model.keyed(r, c.tier, path[c.from]) {
				w.t.Fatalf("rank %d: nothing in tier %v from %d on, but that block is held", r, c.tier, c.from)
			}
		}
	}
}

func (w *world) checkCounts() {
	w.t.Helper()
	total := 0
	for r, rs := range w.ix.Stats().Ranks {
		unkeyed := 0
		for t := range w.model.ranks[r] {
			total += len(w.model.ranks[r][t])
			if rs.Blocks[t] != len(w.model.ranks[r][t]) {
				w.t.Fatalf("rank %d: %d blocks in tier %d, want %d", r, rs.Blocks[t], t, len(w.model.ranks[r][t]))
			}
			for _, c := range w.model.ranks[r][t] {
				if !c.keyed {
					unkeyed++
				}
			}
		}
		if rs.Unkeyed != unkeyed {
			w.t.Fatalf("rank %d: %d blocks without a key, want %d", r, rs.Unkeyed, unkeyed)
		}
	}
	if got := w.ix.Stats().Blocks; got != int64(total) {
		w.t.Fatalf("%d blocks in all, want %d", got, total)
	}
}

// TestIndexEqualsTheSimplestModel plays every kind of event, with restarts, gaps (continuations
// of blocks that were never announced) and copies, into the index and a naive model.
func TestIndexEqualsTheSimplestModel(t *testing.T) {
	seeds, steps := 24, 3000
	if testing.Short() || raceEnabled {
		seeds, steps = 6, 1200
	}
	for seed := range uint64(seeds) {
		dice := rand.New(rand.NewPCG(seed, 7))
		ranks := 1 + dice.IntN(9)
		w := &world{
			t: t, dice: dice, nodes: tree(dice, 20+dice.IntN(300)), model: newModel(ranks), ix: newIndex(t, ranks),
		}
		for i := range steps {
			w.step()
			if i%100 == 0 {
				w.check()
			}
		}
		w.check()
		for r := range ranks {
			w.ix.RemoveRank(replica.Slot(r))
		}
		if s := w.ix.Stats(); s.Held != [kvblock.Tiers]int64{} || s.Blocks != 0 || s.Sets != 0 {
			t.Fatalf("seed %d: after all ranks are gone %+v remains", seed, s)
		}
	}
}

// TestASnapshotConvergesUnderAReplay loads a snapshot, replays all events of the engine's life
// over it, and expects exactly what the replay says.
func TestASnapshotConvergesUnderAReplay(t *testing.T) {
	for seed := range uint64(8) {
		dice := rand.New(rand.NewPCG(seed, 9))
		w := &world{t: t, dice: dice, nodes: tree(dice, 200), model: newModel(1), ix: newIndex(t, 0)}
		named := kvindex.RankInfo{Rank: replica.Rank{Replica: "r"}, BlockSize: size}
		if err := w.ix.AddRank(0, named); err != nil {
			t.Fatal(err)
		}
		w.ix.SetState(0, kvblock.FeedExact)
		for range 400 { // a former life or a lost tail: anything
			w.store(0)
			w.remove(0)
		}
		var file bytes.Buffer
		if err := w.ix.Snapshot(&file); err != nil {
			t.Fatal(err)
		}
		before := w.ix.Stats().Ranks[0]

		w.ix, w.model = newIndex(t, 0), newModel(1)
		if _, err := w.ix.Load(&file); err != nil {
			t.Fatal(err)
		}
		if err := w.ix.AddRank(0, named); err != nil {
			t.Fatal(err)
		}
		w.ix.SetState(0, kvblock.FeedCold)
		after := w.ix.Stats().Ranks[0]
		if after.Blocks != before.Blocks || after.Unkeyed != before.Unkeyed || !after.FromSnapshot {
			t.Fatalf("loaded %+v, want the blocks of %+v", after, before)
		}
		w.dice = rand.New(rand.NewPCG(seed, 10))
		for range 600 {
			w.store(0)
			w.remove(0)
		}
		w.ix.SetState(0, kvblock.FeedExact)
		w.checkCountsOfKeyed()
	}
}

// checkCountsOfKeyed compares the held blocks only: a snapshot may know the parent of a block
// that the replay alone could not key.
func (w *world) checkCountsOfKeyed() {
	w.t.Helper()
	rs := w.ix.Stats().Ranks[0]
	for t := range kvblock.Tiers {
		if rs.Blocks[t] != len(w.model.ranks[0][t]) {
			w.t.Fatalf("%d blocks in tier %d, want %d", rs.Blocks[t], t, len(w.model.ranks[0][t]))
		}
	}
	for _, n := range w.nodes {
		for t, holders := range w.ix.Path([]blockhash.Hash{n.key})[0].Tiers {
			if held := w.model.ranks[0][t][n] != nil; len(holders) > 0 && !held {
				w.t.Fatalf("block %d counts as held in tier %d after the replay, and is not", n.id, t)
			} else if len(holders) == 0 && w.model.keyed(0, kvblock.Tier(t), n) {
				w.t.Fatalf("block %d is held in tier %d and not found after the replay: %+v", n.id, t, w.ix.Stats().Ranks[0])
			}
		}
	}
}
