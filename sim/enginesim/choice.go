package enginesim

import (
	"strings"

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

	detok  detok
	ids    []uint32 // all so far
	text   []byte   // all so far, stop strings cut off
	sent   int      // bytes of text that were sent
	finish string   // finish_reason; empty while running
	stop   any      // stop_reason: nil, a string or an id
	fresh  []uint32 // scratch of the last poll
}

// delta is what one poll brought.
type delta struct {
	ids  []uint32
	text string
	done bool
}

// poll takes what the engine has written since the last time.
func (c *choice) poll() delta {
	var f core.Finish
	c.fresh, f = c.seq.Take(c.fresh[:0])
	ids := c.fresh
	c.ids = append(c.ids, ids...)
	c.text = c.detok.feed(c.text, ids)
	if f != core.Running {
		c.text = c.detok.flush(c.text)
		c.finish = f.String()
		if id := c.seq.StopID(); id >= 0 {
			c.stop = id
		}
	}
	c.cutAtStop()
	end := len(c.text)
	if c.finish == "" {
		end = max(c.sent, len(c.text)-c.held())
		for end > c.sent && end < len(c.text) && c.text[end]&0xC0 == 0x80 {
			end-- // never part a character
		}
	}
	d := delta{ids: ids, text: string(c.text[c.sent:end]), done: c.finish != ""}
	c.sent = end
	return d
}

// held is how many bytes are kept back because a stop string may begin in them.
func (c *choice) held() int {
	longest := 0
	if !c.s.IncludeStop {
		for _, s := range c.s.Stop {
			longest = max(longest, len(s)-1)
		}
	}
	return longest
}

// cutAtStop ends the answer where a stop string is found.
func (c *choice) cutAtStop() {
	from := max(0, c.sent-c.held())
	for _, s := range c.s.Stop {
		if s == "" {
			continue
		}
		i := strings.Index(string(c.text[from:]), s)
		if i < 0 {
			continue
		}
		end := from + i
		if c.s.IncludeStop {
			end += len(s)
		}
		c.text = c.text[:max(end, c.sent)]
		c.finish, c.stop = "stop", s
		c.core.Abort(c.seq, core.FinishStop)
		return
	}
}
