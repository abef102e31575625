package replay

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// chunkTokens is how many tokens one id of a Mooncake-style trace stands for.
const chunkTokens = 512

// Call is one request of a trace.
type Call struct {
	// At is the arrival in seconds from the start of the trace; in a closed loop, the time after
	// the previous call of the session completed.
	At float64
	// In and Out are prompt and output tokens.
	In, Out int
	// IDs name the prompt's chunks, then those of the output where a later prompt contains it;
	// equal ids in equal positions mean an equal prefix.
	IDs []uint64
	// Session numbers the session, Prev is the call that must complete first (-1: none). Joins are further calls that must: those of
	// the subagents with the results that the prompt continues with.
	Session int
	Prev    int
	Joins   []int
	// Tenant sends it; tenants share the hold queue.
	Tenant string
	// Adapter is its LoRA adapter; empty for the base model.
	Adapter string
}

// Trace is a list of calls in order of arrival.
type Trace struct {
	Name  string
	Calls []Call
	// Chunk is the number of tokens per id.
	Chunk int
	// Closed says that calls of one session wait for each other.
	Closed bool
	// After gives for each call of an open loop the call with the answer that is part of its prompt (-1: none): it arrives at its own
	// time, but not before that answer is there. Nil says that no call waits.
	After []int
	// Programs numbers the program of each call, the tree of an agent's session and those of its subagents. Nil: each session is one.
	Programs []int
	// Chats is the number of the first call that belongs to no program: chats that arrive at their own times next to a load by programs
	// at once. 0: there are none.
	Chats int
}

// program is the number of the call's program, -1 for a chat.
func (t *Trace) program(call int) int {
	if t.isChat(call) {
		return -1
	}
	if t.Programs != nil {
		return t.Programs[call]
	}
	return t.Calls[call].Session
}

// sessionNames are the names of the sessions, as clients send them.
func (t *Trace) sessionNames() []string {
	var names []string
	callers := t.callers()
	for i := range t.Calls {
		n := t.Calls[i].Session
		for n >= len(names) {
			names = append(names, "s"+strconv.Itoa(len(names)))
		}
		if by := callers[i]; by >= 0 {
			names[n] = names[t.Calls[by].Session] + "/" + strconv.Itoa(n)
		}
	}
	return names
}

// mooncakeLine is a line of the open-loop form.
type mooncakeLine struct {
	Timestamp float64  `json:"timestamp"`
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	IDs       []uint64 `json:"hash_ids"`
	Adapter   string   `json:"adapter"`
	// Requests marks the closed-loop form.
	Requests []sessionCall `json:"requests"`
}

// sessionCall is a request of the closed-loop form.
type sessionCall struct {
	In    int       `json:"in"`
	Out   int       `json:"out"`
	Think float64   `json:"think_time"`
	IDs   [2]uint64 `json:"h"`
}

// ReadTrace reads a trace file: Mooncake's open-loop lines or closed-loop session lines, plain
// or gzipped.
func ReadTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer f.Close()
	var r io.Reader = f
	name := filepath.Base(path)
	if strings.HasSuffix(name, ".gz") {
		zr, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("read trace %s: %w", name, err)
		}
		defer zr.Close()
		r = zr
		name = strings.TrimSuffix(name, ".gz")
	}
	t, err := parseTrace(r)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", name, err)
	}
	t.Name = strings.TrimSuffix(name, ".jsonl")
	return t, nil
}

func parseTrace(r io.Reader) (*Trace, error) {
	t := &Trace{Chunk: chunkTokens}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 1<<16), 64<<20)
	session := 0
	for n := 1; lines.Scan(); n++ {
		if len(strings.TrimSpace(lines.Text())) == 0 {
			continue
		}
		var line mooncakeLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case len(line.Requests) > 0:
			if len(t.Calls) > 0 && !t.Closed {
				return nil, fmt.Errorf("line %d: a session among single requests", n)
			}
			t.addSession(session, line.Requests)
			session++
		case line.Input <= 0:
			return nil, fmt.Errorf("line %d: input_length must be positive", n)
		default:
			t.Calls = append(t.Calls, Call{
				At: line.Timestamp / 1000, In: line.Input, Out: max(1, line.Output), IDs: line.IDs, Session: len(t.Calls), Prev: -1, Adapter: line.Adapter,
			})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.Calls) == 0 {
		return nil, errors.New("no requests")
	}
	if first := t.Calls[0].At; !t.Closed {
		for i := range t.Calls {
			t.Calls[i].At -= first
		}
		groupSessions(t)
	}
	return t, nil
}

// addSession appends a session's calls; the ids of a call's output are those by which the next
// prompt continues it.
func (t *Trace) addSession(session int, calls []sessionCall) {
	t.Closed = true
	for i, c := range calls {
		prev := -1
		if i > 0 {
			prev = len(t.Calls) - 1
		}
		last := c.IDs[1]
		if n := last - c.IDs[0] + 1; i == 0 && session == 0 && n > 0 && c.In > 0 {
			// The form does not name the size of its blocks: take the power of two that fits.
			t.Chunk = 1 << max(0, int(math.Round(math.Log2(float64(c.In)/float64(n)))))
		}
		if i+1 < len(calls) && calls[i+1].IDs[0] == c.IDs[0] && calls[i+1].IDs[1] > last {
			last = min(calls[i+1].IDs[1], last+uint64(c.Out/max(1, t.Chunk)))
		}
		ids := make([]uint64, 0, last-c.IDs[0]+1)
		for id := c.IDs[0]; id <= last; id++ {
			ids = append(ids, id)
		}
		t.Calls = append(t.Calls, Call{At: max(0, c.Think), In: c.In, Out: max(1, c.Out), IDs: ids, Session: session, Prev: prev})
	}
}

// groupSessions numbers conversations in an open-loop trace: a call that continues the whole
// prompt of an earlier one (but its last, partial chunk) belongs to its session.
func groupSessions(t *Trace) {
	owner := map[uint64]int{}
	for i := range t.Calls {
		c := &t.Calls[i]
		c.Session = i
		for j := len(c.IDs) - 1; j >= 1; j-- { // the first chunk is often a shared system prompt
			if s, ok := owner[c.IDs[j]]; ok {
				c.Session = s
				break
			}
		}
		for _, id := range c.IDs[min(1, len(c.IDs)):] {
			owner[id] = c.Session
		}
	}
}

// First returns the first n calls of an open-loop trace; 0 returns all.
func (t *Trace) First(n int) *Trace {
	if n <= 0 || n >= len(t.Calls) || t.Closed {
		return t
	}
	short := *t
	short.Calls = t.Calls[:n:n]
	if t.After != nil {
		short.After = t.After[:n:n]
	}
	return &short
}

// arrivals are the times in seconds at which the calls of an open-loop trace arrive when there are rate
// of them per second. Calls that the trace's clock puts at one moment are spread at random until the next.
func (t *Trace) arrivals(rate float64, seed uint64) []float64 {
	at := spread(t, seed)
	speed := rate / t.rate()
	for i := range at {
		at[i] /= speed
	}
	return at
}

// rate is the trace's own arrival rate in calls per second.
func (t *Trace) rate() float64 {
	last := 0.0
	for i := range t.Calls {
		if t.Calls[i].Prev < 0 {
			last = max(last, t.Calls[i].At)
		}
	}
	return float64(len(t.Calls)) / max(last, 1e-3)
}

// repeat returns the trace played so many times, one pass after the other, each with prefixes and
// sessions of its own.
func (t *Trace) repeat(passes int) *Trace {
	if passes <= 1 || len(t.Calls) == 0 {
		return t
	}
	var ids uint64
	sessions, span := 0, 0.0
	for i := range t.Calls {
		c := &t.Calls[i]
		sessions = max(sessions, c.Session+1)
		if c.Prev < 0 {
			span = max(span, c.At)
		}
		for _, id := range c.IDs {
			ids = max(ids, id+1)
		}
	}
	span += span / float64(len(t.Calls)) // the gap between the last call of a pass and the first of the next
	long := &Trace{Name: t.Name, Chunk: t.Chunk, Closed: t.Closed, Calls: make([]Call, 0, passes*len(t.Calls))}
	for pass := range passes {
		for _, before := range t.After {
			if before >= 0 {
				before += pass * len(t.Calls)
			}
			long.After = append(long.After, before)
		}
		for _, c := range t.Calls {
			own := make([]uint64, len(c.IDs))
			for i, id := range c.IDs {
				own[i] = id + uint64(pass)*ids
			}
			c.IDs, c.Session = own, c.Session+pass*sessions
			if c.Prev < 0 {
				c.At += float64(pass) * span
			} else {
				c.Prev += pass * len(t.Calls)
			}
			long.Calls = append(long.Calls, c)
		}
	}
	return long
}

// tokens is the number of prompt tokens of the trace.
func (t *Trace) tokens() int {
	n := 0
	for i := range t.Calls {
		n += t.Calls[i].In
	}
	return n
}
