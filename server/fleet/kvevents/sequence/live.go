package sequence

// live handles a batch of the event socket.
func (t *step) live(b *Batch) {
	if t.event.Epoch != t.link.epoch {
		return
	}
	if t.link.proof.stage == proofOpen && t.canCompare(t.now) {
		t.prove(b.Mark)
		t.add(Keep)
		return
	}
	switch {
	case t.otherPublisher(b.By):
		t.liveAgain(b)
	case t.link.hasLive && b.Seq <= t.link.live.Seq:
		if b.Seq+1 == t.pos.next && t.pos.isLast(b.Print) {
			return // delivered twice
		}
		t.newLife("the numbering went back from %d to %d", t.link.live.Seq, b.Seq)
		t.liveAgain(b)
	case !t.pos.known:
		if b.Seq != 0 && t.canReplay(t.now) && !t.tried(b.Seq) {
			t.fill(b.Seq, WhyFirst)
			return
		}
		t.base(b.Seq)
		t.accept(b)
	case b.Seq < t.pos.next && t.link.identity == identitySame:
		t.followed(b) // a replay was ahead of it
	case b.Seq < t.pos.next:
		t.newLife("the numbering went back from %d to %d", t.pos.next-1, b.Seq)
		t.liveAgain(b)
	case b.Seq > t.pos.next:
		t.beyondGap(b)
	default:
		t.accept(b)
	}
}

// liveAgain handles the first batch of a new engine process, unless a replay comes before it.
func (t *step) liveAgain(b *Batch) {
	if t.replay.running {
		t.add(Keep)
		return
	}
	t.live(b)
}

// beyondGap handles a batch after missing ones: a replay is requested, or everything known is forgotten.
func (t *step) beyondGap(b *Batch) {
	if !t.tried(b.Seq) {
		t.add(Gap)
		if t.canReplay(t.now) {
			t.fill(b.Seq, WhyGap)
			return
		}
	}
	t.problem("batches %d to %d are lost", t.pos.next, b.Seq-1)
	t.doubt()
	t.base(b.Seq)
	t.accept(b)
}

// fill requests a replay of the batches before the live one, which waits.
func (t *step) fill(seq uint64, why Why) {
	t.gap = gap{tried: true, seq: seq, next: t.pos.next}
	t.recover(why)
	t.add(Keep)
}

// accept applies the batch that is expected. One that cannot be read counts as lost; the ring of the
// engine may hold it in a better shape.
func (t *step) accept(b *Batch) {
	if t.apply(b) {
		t.followed(b)
		return
	}
	t.followed(b)
	if t.canReplay(t.now) && t.now.Sub(t.rereadAt) > rereadEvery {
		t.rereadAt = t.now
		t.recover(WhyGap)
		return
	}
	t.damaged(b)
}

// followed makes b the newest batch of the connection.
func (t *step) followed(b *Batch) {
	t.link.live, t.link.hasLive, t.link.identity = b.Mark, true, identitySame
	t.probeAfter(t.event.At, t.Probe)
}

// otherPublisher notes the publisher of the current batch, and begins a new life when it is another
// process than before.
func (t *step) otherPublisher(by Publisher) bool {
	switch {
	case by == Publisher{}:
		return false
	case t.pos.by == by:
		t.link.identity = identitySame
		return false
	case t.pos.by == Publisher{}:
		t.pos.by = by
		return false
	}
	t.newLife("another process publishes: %x instead of %x", by, t.pos.by)
	return true
}

// apply passes a batch to the sink and advances. It reports false, and leaves the position, when the batch cannot be read.
func (t *step) apply(b *Batch) bool {
	if b.Err != nil {
		t.add(Unreadable)
		t.problem("batch %d: %v", b.Seq, b.Err)
		return false
	}
	t.add(Apply)
	if b.Emptied && !t.pos.lower {
		t.pos.exact, t.pos.partial = true, false // what is there now is known: nothing
	}
	t.pos.lower = t.pos.lower || b.Lower
	t.pos.dirty = t.pos.dirty || b.Stores
	if b.Misfits > 0 {
		t.pos.exact = false
		t.problem("batch %d: %d stores whose tokens do not match their hashes", b.Seq, b.Misfits)
	}
	t.pos.advance(&b.Mark)
	t.pos.unproven = false
	return true
}

// damaged steps over a batch that cannot be read. It may have held removals, so nothing that was
// known before it can be relied on.
func (t *step) damaged(b *Batch) {
	t.reset(BatchUnreadable)
	t.pos.advance(&b.Mark)
	t.pos.unproven = false
}
