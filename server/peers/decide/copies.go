package decide

import (
	"strconv"
	"time"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// maxCopies bounds the copies of one peer.
	maxCopies = 256
	// lateCopy and lateFactor bound the time in which a frontend reports the end of a copy: its own limit is shorter.
	lateCopy   = 15 * time.Second
	lateFactor = 8
)

// orders is the chooser.Copier of a peer's question: the frontend that has the prompt makes the copies, as long as the request waits or is answered.
type orders struct {
	decider *Decider
	to      *client
	number  uint64 // of the question
}

// ordered is a copy that a frontend makes.
type ordered struct {
	chooser.CopyReports
	until time.Time
}

// Copy implements chooser.Copier.
func (o *orders) Copy(p *chooser.Prefix) {
	d := o.decider
	one := copyingOf(p, d.params.Self+"-"+strconv.FormatUint(d.orders.Add(1), 10))
	d.mu.Lock()
	begins := o.to.up && len(o.to.copies) < maxCopies
	if begins {
		o.to.copies[one.GetId()] = ordered{p, d.copyUntil(p.Predicted)}
		d.reply(o.to, &peerv1.DeciderReply{Reply: &peerv1.DeciderReply_Copy{Copy: &peerv1.CopyOrder{Number: o.number, Copy: one}}})
	}
	d.mu.Unlock()
	if !begins {
		p.Ended(chooser.CopyGivenUp)
	}
}

func (d *Decider) copyUntil(expected time.Duration) time.Time {
	return d.params.Clock.Now().Add(lateCopy + lateFactor*max(0, min(expected, maxSpan)))
}

// copyingOf describes a copy.
func copyingOf(p *chooser.Prefix, id string) *peerv1.Copying {
	return &peerv1.Copying{
		Id: id, FromReplicaId: text(p.From.Replica.ID), FromRank: uint32(max(0, p.From.Rank)), ToReplicaId: text(p.To.Replica.ID), ToRank: uint32(max(0, p.To.Rank)),
		BlockSize: uint32(p.BlockSize), Blocks: uint32(p.Tokens / max(1, p.BlockSize)), LastKey: uint64(p.Last), MovedTokens: uint32(max(0, p.Moved)), Expected: span(p.Predicted),
	}
}

// copied handles a report about a copy.
func (d *Decider) copied(c *client, in *peerv1.CopyReport) {
	if in.GetState() == peerv1.CopyState_COPY_STATE_UNDER_WAY {
		d.adoptCopy(c, in)
		return
	}
	d.mu.Lock()
	one, known := c.copies[in.GetId()]
	if known && in.GetState() != peerv1.CopyState_COPY_STATE_SENT {
		delete(c.copies, in.GetId())
	}
	d.mu.Unlock()
	switch {
	case !known:
	case in.GetState() == peerv1.CopyState_COPY_STATE_SENT:
		one.Sent()
	default:
		one.Ended(endOfCopy(in.GetState()))
	}
}

// adoptCopy counts a copy that another router ordered, so that no second one begins and requests wait for it.
func (d *Decider) adoptCopy(c *client, in *peerv1.CopyReport) {
	replicas := d.params.Replicas.Serving(in.GetModel(), "")
	of := in.GetCopy()
	from, knownFrom := slotOf(replicas, replica.ID(of.GetFromReplicaId()), int(of.GetFromRank()))
	to, knownTo := slotOf(replicas, replica.ID(of.GetToReplicaId()), int(of.GetToRank()))
	size, blocks := int(of.GetBlockSize()), int(of.GetBlocks())
	if !knownFrom || !knownTo || size <= 0 || blocks <= 0 || size > maxTokens || blocks > maxTokens || !isShort(in.GetModel()) {
		return
	}
	expected := max(0, min(of.GetExpected().AsDuration(), maxSpan))
	d.mu.Lock()
	_, known := c.copies[in.GetId()]
	full := len(c.copies) >= maxCopies || !c.up
	d.mu.Unlock()
	if known || full {
		return
	}
	reports := d.params.Chooser.AdoptCopy(chooser.Copying{
		ID: in.GetId(), From: from, To: to, Last: blockhash.Hash(of.GetLastKey()), Blocks: blocks, BlockSize: size, Left: expected,
	})
	if reports == nil {
		return
	}
	d.mu.Lock()
	up := c.up
	if up {
		c.copies[in.GetId()] = ordered{reports, d.copyUntil(expected)}
	}
	d.mu.Unlock()
	if !up {
		reports.Ended(chooser.CopyVoid)
	}
}

// forgetCopies drops all copies and returns them; the Decider's mu is held.
func (c *client) forgetCopies() (list []chooser.CopyReports) {
	for id, one := range c.copies {
		delete(c.copies, id)
		list = append(list, one)
	}
	return list
}

// lateCopies drops the copies that should have ended, or, away, all, and returns them; the Decider's mu is held.
func (c *client) lateCopies(now time.Time, away bool) (list []chooser.CopyReports) {
	for id, one := range c.copies {
		if away || now.After(one.until) {
			delete(c.copies, id)
			list = append(list, one)
		}
	}
	return list
}

// running is a copy that this router makes. It is its prefix' CopyReports.
type running struct {
	frontend *Frontend
	id       string
	model    string
	pool     string
	prefix   chooser.Prefix
	due      time.Time

	// Guarded by the frontend's mu.
	at    ID                  // the peer that counts it, empty for none
	local chooser.CopyReports // nil: this router's own chooser does not count it
	sent  bool
	ended bool
}

// follow has this router's copies for the request outlive a change of the decider. copier may be nil.
func (w *Waiting) follow(copier chooser.Copier) chooser.Copier {
	if copier == nil || !w.shared {
		return copier
	}
	return &follower{w, copier}
}

// follower is the Copier of a request that this router's own chooser decides.
type follower struct {
	waiting *Waiting
	copier  chooser.Copier
}

// Copy implements chooser.Copier.
func (o *follower) Copy(p *chooser.Prefix) {
	f := o.waiting.frontend
	f.mu.Lock()
	one := o.waiting.running(p, f.params.Self+"-"+strconv.FormatUint(f.number.Add(1), 10)+"f")
	one.local = p.CopyReports
	f.copies[one.id] = one
	f.mu.Unlock()
	o.copier.Copy(&one.prefix)
}

// running makes the copy of a request's prompt.
func (w *Waiting) running(p *chooser.Prefix, id string) *running {
	f := w.frontend
	one := &running{frontend: f, id: id, model: w.req.Model, pool: w.pool, prefix: *p, due: f.params.Clock.Now().Add(p.Predicted)}
	one.prefix.CopyReports = one
	return one
}

// ordered makes a copy for a peer that decides: of the prompt of a question that the peer has been asked, or of a booking that it knows, since copies
// are also ordered while a request is answered.
func (f *Frontend) ordered(from ID, in *peerv1.CopyOrder) {
	of := in.GetCopy()
	f.mu.Lock()
	var w *Waiting
	if asked := f.asks[in.GetNumber()]; asked != nil && asked.at == from {
		w = asked
	} else if booked := f.live[in.GetNumber()]; booked != nil && booked.at == from {
		w = booked.origin
	}
	if w == nil || w.req.Copier == nil || f.copies[of.GetId()] != nil {
		f.sendCopy(from, &peerv1.CopyReport{Id: of.GetId(), State: peerv1.CopyState_COPY_STATE_VOID})
		f.mu.Unlock()
		return
	}
	p, ok := prefixOf(of, w.req)
	if !ok || len(f.copies) >= maxCopies {
		f.sendCopy(from, &peerv1.CopyReport{Id: of.GetId(), State: peerv1.CopyState_COPY_STATE_GIVEN_UP})
		f.mu.Unlock()
		return
	}
	one := w.running(p, of.GetId())
	one.at = from
	f.copies[one.id] = one
	copier := w.req.Copier
	f.mu.Unlock()
	copier.Copy(&one.prefix)
}

// prefixOf reads a copy of the beginning of req's prompt; false when this router cannot make it.
func prefixOf(of *peerv1.Copying, req *chooser.Request) (*chooser.Prefix, bool) {
	from, knownFrom := placeOf(req, of.GetFromReplicaId(), of.GetFromRank())
	to, knownTo := placeOf(req, of.GetToReplicaId(), of.GetToRank())
	size, blocks := int(of.GetBlockSize()), int(of.GetBlocks())
	if !knownFrom || !knownTo || from.Slot == to.Slot || req.Hashes == nil || size <= 0 || blocks <= 0 {
		return nil, false
	}
	if keys := req.Hashes(size); blocks > len(keys) || keys[blocks-1] != blockhash.Hash(of.GetLastKey()) {
		return nil, false // it is no beginning of this prompt
	}
	return &chooser.Prefix{
		From: from, To: to, Tokens: blocks * size, BlockSize: size, Last: blockhash.Hash(of.GetLastKey()), Moved: min(tokensOf(of.GetMovedTokens()), blocks*size),
		Predicted: max(0, min(of.GetExpected().AsDuration(), maxSpan)),
	}, true
}

func placeOf(req *chooser.Request, id string, rank uint32) (chooser.Place, bool) {
	slot, ok := slotOf(req.Replicas, replica.ID(id), int(rank))
	return chooser.Place{Replica: ownerOf(req, replica.ID(id)), Rank: int(rank), Slot: slot}, ok
}

// assign gives the copy to the router that decides for its pool now; the frontend's mu is held.
func (r *running) assign(to ID) {
	f := r.frontend
	if to == f.params.Self {
		to = ""
	}
	if r.at == to && (to != "" || r.local != nil) {
		return
	}
	if r.at != "" {
		f.sendCopy(r.at, &peerv1.CopyReport{Id: r.id, State: peerv1.CopyState_COPY_STATE_VOID})
	}
	r.at = to
	of := copyingOf(&r.prefix, r.id)
	left := r.due.Sub(f.params.Clock.Now())
	switch {
	case to != "":
		of.Expected = span(left)
		f.sendCopy(to, &peerv1.CopyReport{Id: r.id, State: peerv1.CopyState_COPY_STATE_UNDER_WAY, Copy: of, Model: text(r.model)})
		if r.sent {
			f.sendCopy(to, &peerv1.CopyReport{Id: r.id, State: peerv1.CopyState_COPY_STATE_SENT})
		}
	case r.local == nil:
		p := &r.prefix
		r.local = f.params.Chooser.AdoptCopy(chooser.Copying{
			ID: r.id, From: p.From.Slot, To: p.To.Slot, Last: p.Last, Blocks: p.Tokens / p.BlockSize, BlockSize: p.BlockSize, Left: max(0, left),
		})
	}
}

// Sent implements chooser.CopyReports.
func (r *running) Sent() {
	f := r.frontend
	f.mu.Lock()
	r.sent = true
	if r.at != "" && !r.ended {
		f.sendCopy(r.at, &peerv1.CopyReport{Id: r.id, State: peerv1.CopyState_COPY_STATE_SENT})
	}
	local := r.local
	f.mu.Unlock()
	if local != nil {
		local.Sent()
	}
}

// Ended implements chooser.CopyReports.
func (r *running) Ended(how chooser.CopyEnd) {
	f := r.frontend
	f.mu.Lock()
	if r.ended {
		f.mu.Unlock()
		return
	}
	r.ended = true
	delete(f.copies, r.id)
	if r.at != "" {
		f.sendCopy(r.at, &peerv1.CopyReport{Id: r.id, State: copyState(how)})
	}
	local := r.local
	f.mu.Unlock()
	if local != nil {
		local.Ended(how)
	}
}

// sendCopy reports a copy to the peer that counts it; mu is held.
func (f *Frontend) sendCopy(to ID, report *peerv1.CopyReport) {
	f.params.Fleet.SendEvent(to, &peerv1.FrontendEvent{Event: &peerv1.FrontendEvent_Copy{Copy: report}})
}

// copyStates are the wire form of the ends of copies.
var copyStates = [...]peerv1.CopyState{
	chooser.Copied: peerv1.CopyState_COPY_STATE_COPIED, chooser.SourceFailed: peerv1.CopyState_COPY_STATE_SOURCE_FAILED,
	chooser.TargetFailed: peerv1.CopyState_COPY_STATE_TARGET_FAILED, chooser.CopyGivenUp: peerv1.CopyState_COPY_STATE_GIVEN_UP,
	chooser.CopyVoid: peerv1.CopyState_COPY_STATE_VOID,
}

func copyState(how chooser.CopyEnd) peerv1.CopyState { return copyStates[how] }

// endOfCopy reads an end.
func endOfCopy(in peerv1.CopyState) chooser.CopyEnd {
	for how, state := range copyStates {
		if state == in {
			return chooser.CopyEnd(how)
		}
	}
	return chooser.CopyGivenUp
}
