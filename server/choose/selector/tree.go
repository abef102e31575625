package selector

import (
	"errors"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/kit/check"
)

// TreeConfig has an operator's settings of prefix-affinity's text tree.
type TreeConfig struct {
	// Evict limits the text that is kept per rank.
	Evict bool `yaml:"evict"`
	// EvictAbove is the number of characters per rank above which the oldest text is evicted.
	EvictAbove int `yaml:"evict_above"`
	// EvictTo is the number of characters per rank at which eviction stops.
	EvictTo int `yaml:"evict_to"`
	// EvictEvery is the time between two checks.
	EvictEvery time.Duration `yaml:"evict_every"`
}

// DefaultTreeConfig returns the defaults. Unlike Ray's, the tree is bounded by default.
func DefaultTreeConfig() TreeConfig {
	return TreeConfig{Evict: true, EvictAbove: 8_000_000, EvictTo: 7_200_000, EvictEvery: 10 * time.Second}
}

// Validate reports every bad field at once.
func (c TreeConfig) Validate() error {
	return errors.Join(
		check.AtLeast("evict_above", c.EvictAbove, 1),
		check.Between("evict_to", c.EvictTo, 0, c.EvictAbove),
		check.Positive("evict_every", c.EvictEvery),
	)
}

// Tree remembers which rank was sent which text: a radix tree over bytes in which each node
// knows the ranks that have its text and when they last used it. It is safe for concurrent use.
type Tree struct {
	config TreeConfig

	mu    sync.Mutex
	root  *treeNode            // guarded by mu
	sizes map[replica.Slot]int // text per rank; guarded by mu
	swept time.Time            // guarded by mu
}

type treeNode struct {
	text     string
	parent   *treeNode
	children map[byte]*treeNode
	used     map[replica.Slot]time.Time
}

// NewTree returns an empty tree.
func NewTree(config TreeConfig) *Tree {
	return &Tree{config: config, root: newTreeNode("", nil), sizes: map[replica.Slot]int{}}
}

func newTreeNode(text string, parent *treeNode) *treeNode {
	return &treeNode{text: text, parent: parent, children: map[byte]*treeNode{}, used: map[replica.Slot]time.Time{}}
}

// Insert records that slot was sent text at now.
func (t *Tree) Insert(slot replica.Slot, text string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.sizes[slot]; !known {
		t.sizes[slot] = 0
	}
	n := t.root
	for len(text) > 0 {
		child := n.children[text[0]]
		if child == nil {
			child = newTreeNode(strings.Clone(text), n) // the caller's is part of a body
			n.children[text[0]] = child
		} else if common := agree(child.text, text); common < len(child.text) {
			child = child.split(common)
		}
		t.touch(child, slot, now)
		n, text = child, text[len(child.text):]
	}
	if t.config.Evict && now.Sub(t.swept) >= t.config.EvictEvery {
		t.swept = now
		t.sweep()
	}
}

func (t *Tree) touch(n *treeNode, slot replica.Slot, now time.Time) {
	if _, had := n.used[slot]; !had {
		t.sizes[slot] += len(n.text)
	}
	n.used[slot] = now
}

// split cuts n after common bytes and returns the upper part.
func (n *treeNode) split(common int) *treeNode {
	upper := newTreeNode(n.text[:common], n.parent)
	for slot, at := range n.used {
		upper.used[slot] = at
	}
	n.parent.children[n.text[0]] = upper
	n.text, n.parent = n.text[common:], upper
	upper.children[n.text[0]] = n
	return upper
}

// Match calls found with each rank that knows a beginning of text and how many bytes of it.
func (t *Tree) Match(text string, found func(slot replica.Slot, chars int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	deepest := map[replica.Slot]int{}
	n, at := t.root, 0
	for at < len(text) {
		child := n.children[text[at]]
		if child == nil || len(child.used) == 0 {
			break
		}
		common := agree(child.text, text[at:])
		at += common
		for slot := range child.used {
			deepest[slot] = at
		}
		if common < len(child.text) {
			break
		}
		n = child
	}
	for slot, chars := range deepest {
		found(slot, chars)
	}
}

// Size is how many characters the tree keeps for slot.
func (t *Tree) Size(slot replica.Slot) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sizes[slot]
}

// Remove forgets a rank.
func (t *Tree) Remove(slot replica.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sizes, slot)
	t.root.remove(slot)
}

func (n *treeNode) remove(slot replica.Slot) {
	for _, child := range n.children {
		child.remove(slot)
	}
	delete(n.used, slot)
	n.prune()
}

// prune removes n from the tree when no rank uses it and nothing hangs below.
func (n *treeNode) prune() {
	if n.parent != nil && len(n.used) == 0 && len(n.children) == 0 {
		delete(n.parent.children, n.text[0])
	}
}

// sweep cuts each rank that is above the limit down to the target, the oldest texts first; texts of one moment go together.
// mu is held.
func (t *Tree) sweep() {
	for slot, size := range t.sizes {
		if size > t.config.EvictAbove {
			t.cut(slot, size-t.config.EvictTo)
		}
	}
}

// cut removes at least excess characters of slot. mu is held.
func (t *Tree) cut(slot replica.Slot, excess int) {
	var nodes []*treeNode
	t.root.collect(slot, &nodes)
	sort.SliceStable(nodes, func(i, j int) bool { return nodes[i].used[slot].Before(nodes[j].used[slot]) })
	var last time.Time
	for _, n := range nodes { // children come before their parents, so that leaves go first
		at := n.used[slot]
		if excess <= 0 && !at.Equal(last) {
			break
		}
		last = at
		excess -= len(n.text)
		t.sizes[slot] -= len(n.text)
		delete(n.used, slot)
		n.prune()
	}
}

func (n *treeNode) collect(slot replica.Slot, nodes *[]*treeNode) {
	for _, child := range n.children {
		child.collect(slot, nodes)
		if _, ok := child.used[slot]; ok {
			*nodes = append(*nodes, child)
		}
	}
}

func agree(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
