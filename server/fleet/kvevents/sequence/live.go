package sequence

// liveStep is the step of a live batch.
type liveStep struct{ step }

func (t *liveStep) live(b *Batch) {
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
		t.byNumber()
		t.accept(b)
	}
}

// byNumber handles a batch whose number alone shows that the engine is the known one. Where a replay could have shown it and
// failed, the process may be another that has come as far: all is read again.
func (t *liveStep) byNumber() {
	if t.link.identity != identitySame && t.socket.at != "" && t.pos.ring != ringEmpty {
		t.pos.exact, t.pos.partial = false, true
	}
}

// liveAgain handles the first batch of a new engine process, unless a replay comes before it.
func (t *liveStep) liveAgain(b *Batch) {
	if t.replay.running {
		t.add(Keep)
		return
	}
	t.live(b)
}

// beyondGap handles a batch after missing ones: a replay is requested, or everything known is forgotten.
func (t *liveStep) beyondGap(b *Batch) {
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
func (t *liveStep) fill(seq uint64, why Why) {
	t.gap = gap{tried: true, seq: seq, next: t.pos.next}
	t.recover(why)
	t.add(Keep)
}

// accept applies the batch that is expected. One that cannot be read counts as lost; the ring of the
// engine may hold it in a better shape.
func (t *liveStep) accept(b *Batch) {
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
func (t *liveStep) followed(b *Batch) {
	t.link.live, t.link.hasLive, t.link.identity = b.Mark, true, identitySame
	t.probeAfter(t.event.At, t.Probe)
}
