package load

import (
	"sort"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
)

// tree holds the hashed prompt blocks that a rank's bookings use, each once. A block's hash names
// everything before it too, so one map from a node's first hash finds any path, and two paths
// that agree on a block agree on all before it.
//
// A node is a run of blocks that the same bookings use. Nodes used by one booking count among that
// booking's exclusive blocks; all others count in shared.
type tree struct {
	root    node
	byFirst map[blockhash.Hash]*node
	shared  int64 // blocks used by two bookings or more
	free    *node // unused nodes, linked by next
	spare   int   // how many
}

// maxSpareNodes bounds the nodes kept for reuse per rank.
const maxSpareNodes = 256

type node struct {
	parent     *node
	edge       []blockhash.Hash
	users      int64    // bookings with a prompt that passes through this node
	child      *node    // first child
	prev, next *node    // siblings
	ends       *booking // first of the bookings that end here
}

func newTree() tree { return tree{byFirst: map[blockhash.Hash]*node{}} }

// insert adds the path of s. A booking that was alone on a part of it shares that part from now on.
func (t *tree) insert(s *booking, hashes []blockhash.Hash, rk *rank) {
	if len(hashes) == 0 {
		return
	}
	at := &t.root
	var alone *booking
	for len(hashes) > 0 {
		n := t.byFirst[hashes[0]]
		if n == nil {
			at = t.grow(at, hashes)
			s.blocks.exclusive += int64(len(hashes))
			break
		}
		common := agree(n.edge, hashes)
		if common < len(n.edge) {
			n = t.split(n, common)
		}
		if n.users == 1 {
			if alone == nil {
				alone = n.only()
			}
			rk.exclude(alone, -int64(common))
			t.shared += int64(common)
		}
		n.users++
		at, hashes = n, hashes[common:]
	}
	s.node = at
	s.nextEnd, s.prevEnd = at.ends, nil
	if at.ends != nil {
		at.ends.prevEnd = s
	}
	at.ends = s
}

// removes the path of s. A booking that is left alone on a part of it has that part for itself.
func (t *tree) remove(s *booking, rk *rank) {
	if s.node == nil {
		return
	}
	if s.prevEnd != nil {
		s.prevEnd.nextEnd = s.nextEnd
	} else {
		s.node.ends = s.nextEnd
	}
	if s.nextEnd != nil {
		s.nextEnd.prevEnd = s.prevEnd
	}
	n := s.node
	s.node, s.prevEnd, s.nextEnd, s.blocks.exclusive = nil, nil, nil, 0
	var alone *booking
	for n != &t.root {
		up := n.parent
		n.users--
		switch n.users {
		case 0:
			t.drop(n)
		case 1:
			if alone == nil {
				alone = n.only()
			}
			rk.exclude(alone, int64(len(n.edge)))
			t.shared -= int64(len(n.edge))
		}
		n = up
	}
}

// exclude changes the blocks that s has for itself by delta. rk.mu is held.
func (rk *rank) exclude(s *booking, delta int64) {
	s.blocks.exclusive += delta
	rk.sums.own += s.blocks.weight * delta
	rk.sums.used += delta
}

// agree is how many leading blocks of the two are the same: since a hash names all that is before
// it, they agree up to some block and nowhere after it.
func agree(edge, hashes []blockhash.Hash) int {
	n := min(len(edge), len(hashes))
	if edge[n-1] == hashes[n-1] {
		return n
	}
	return sort.Search(n, func(i int) bool { return edge[i] != hashes[i] })
}

// only returns the one booking that uses n. n.users must be 1.
func (n *node) only() *booking {
	for n.ends == nil {
		n = n.child
	}
	return n.ends
}

// grow adds a leaf below parent for one user.
func (t *tree) grow(parent *node, edge []blockhash.Hash) *node {
	n := t.take()
	n.edge, n.users = edge, 1
	t.link(parent, n)
	t.byFirst[edge[0]] = n
	return n
}

// split makes the first k blocks of n a node of their own above n and returns that node.
func (t *tree) split(n *node, k int) *node {
	up := t.take()
	up.edge, up.users = n.edge[:k], n.users
	n.edge = n.edge[k:]
	parent := n.parent
	unlink(n)
	t.link(parent, up)
	t.link(up, n)
	t.byFirst[up.edge[0]] = up
	t.byFirst[n.edge[0]] = n
	return up
}

func (t *tree) link(parent, n *node) {
	n.parent, n.prev, n.next = parent, nil, parent.child
	if parent.child != nil {
		parent.child.prev = n
	}
	parent.child = n
}

func unlink(n *node) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		n.parent.child = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	}
}

// drop removes an unused node.
func (t *tree) drop(n *node) {
	delete(t.byFirst, n.edge[0])
	unlink(n)
	*n = node{}
	if t.spare < maxSpareNodes {
		n.next, t.free = t.free, n
		t.spare++
	}
}

func (t *tree) take() *node {
	n := t.free
	if n == nil {
		return new(node)
	}
	t.free, n.next = n.next, nil
	t.spare--
	return n
}
