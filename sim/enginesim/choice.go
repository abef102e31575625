package enginesim

import (
	"bytes"
	"sync/atomic"
	"unicode/utf8"

	"github.com/kvpilot/kvpilot/sim/enginesim/core"
)

// choice is one answer while it is written.
type choice struct {
	seq    *core.Sequence
	core   *core.Core
	index  int
	prompt promptIDs
	s      *sampling
	callID string // of a tool call
	bare   bool   // nothing of the answer was sent but thoughts
	// foreign is set when the cache that it was decoded from is not that of its prompt.
	foreign atomic.Bool

	detok  detok
	ids    []uint32 // all so far
	text   []byte   // all so far, stop strings cut off
	sent   int      // bytes of text that were sent
	finish string   // finish_reason; empty while running
	stop   any      // stop_reason: nil, a string or an id
	fresh  []uint32 // scratch of the last poll
}

// delta is the result of one poll.
type delta struct {
	ids  []uint32
	text string
	done bool
}

// poll takes the engine's output since the last time. As in vLLM, the text is searched for stop strings token by token, and a string
// that is found wins over any other end.
func (c *choice) poll() delta {
	var f core.Finish
	c.fresh, f = c.seq.Take(c.fresh[:0])
	ids := c.fresh
	for i := range ids {
		before := len(c.text)
		c.ids = append(c.ids, ids[i])
		c.text = c.detok.feed(c.text, ids[i:i+1])
		if c.cutAtStop(before) {
			ids = ids[:i+1]
			break
		}
	}
	if f != core.Running && c.finish == "" {
		c.finish = f.String() // of a character that is not complete there is no text
		if id := c.seq.StopID(); id >= 0 {
			c.stop = id
		}
	}
	end := len(c.text)
	if c.finish == "" {
		end = max(c.sent, c.before(c.held()))
	}
	d := delta{ids: ids, text: string(c.text[c.sent:end]), done: c.finish != ""}
	c.sent = end
	return d
}

// before is where the last n characters of the text begin.
func (c *choice) before(n int) int {
	at := len(c.text)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRune(c.text[:at])
		at -= size
	}
	return at
}

// held is how many characters are kept back because a stop string may begin in them.
func (c *choice) held() int {
	longest := 0
	if !c.s.IncludeStop {
		for _, s := range c.s.Stop {
			longest = max(longest, utf8.RuneCountInString(s)-1)
		}
	}
	return longest
}

// cutAtStop ends the answer at the stop string that ends first behind from; of strings that end at the same place, the first one of the list.
func (c *choice) cutAtStop(from int) bool {
	if from == len(c.text) || len(c.ids) <= c.s.MinTokens {
		return false
	}
	end, found := 0, ""
	for _, s := range c.s.Stop {
		if s == "" {
			continue
		}
		start := max(0, from-len(s)+1)
		i := bytes.Index(c.text[start:], []byte(s))
		if i >= 0 && (found == "" || start+i+len(s) < end) {
			end, found = start+i+len(s), s
		}
	}
	if found == "" {
		return false
	}
	if !c.s.IncludeStop {
		end -= len(found)
	}
	c.text = c.text[:end]
	c.finish, c.stop = "stop", found
	c.core.Abort(c.seq, core.FinishStop)
	return true
}
