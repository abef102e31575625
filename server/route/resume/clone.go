package resume

import (
	"bytes"
	"maps"
	"slices"
)

// shortRepeat is how many bytes of an answer another engine writes again while the client waits.
const shortRepeat = 256

// Movable reports whether another replica can be tried for the rest of the stream at this moment, while its own still writes it: where the
// stream could be resumed without asking for a text, where it is continued by token ids, and where it is repeated and still short.
func (f *Follower) Movable() bool {
	switch {
	case f.named != nil:
		return !f.finished && !f.done && f.named.isShort()
	case f.repeat != nil:
		return !f.finished && !f.done && f.repeat.isShort()
	case f.replay == nil:
		return f.Resumable()
	case f.replay.on:
		return f.reason() == NotLost && !f.finished && !f.done
	}
	return f.safe > 0 && f.Resumable() // before the first text nothing shows whether a parser is at work
}

// Clone returns a Follower of the same stream, which is to take the events of another replica while f still takes those of its own. It
// shares what neither changes.
func (f *Follower) Clone() *Follower {
	c := *f
	c.held, c.out = nil, nil
	c.ids, c.shown = slices.Clone(f.ids), bytes.Clone(f.shown)
	if f.stops != nil {
		s := *f.stops
		s.back, s.window, s.text = bytes.Clone(s.back), nil, nil
		c.stops = &s
	}
	if f.replay != nil {
		r := *f.replay
		r.portions, r.calls, r.last = slices.Clone(r.portions), slices.Clone(r.calls), bytes.Clone(r.last)
		r.scratch = nil
		r.waiting, r.usage = slices.Clone(r.waiting), bytes.Clone(r.usage)
		c.replay = &r
	}
	c.repeat, c.spare, c.named = f.repeat.clone(), f.spare.clone(), f.named.clone()
	c.message = f.message.Clone()
	return &c
}

// clone copies what a repetition changes.
func (r *repeat) clone() *repeat {
	if r == nil {
		return nil
	}
	c := *r
	c.text, c.ended, c.has, c.got, c.quiet = nil, maps.Clone(r.ended), r.has.clone(), r.got.clone(), maps.Clone(r.quiet)
	return &c
}

func (g grown) clone() grown {
	c := make(grown, len(g))
	for at, one := range g {
		same := *one
		c[at] = &same
	}
	return c
}

// isShort reports whether little of the answer is there, and all of it was repeated where it had to be.
func (r *repeat) isShort() bool {
	size := 0
	for at, has := range r.has {
		size += has.size
		if r.again && !r.met(at.Choice) {
			return false
		}
	}
	return size <= shortRepeat
}
