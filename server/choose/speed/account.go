package speed

import "time"

// Certainty is how well the computing of a prompt is known.
type Certainty uint8

const (
	// Exact is a prompt of which all is known.
	Exact Certainty = iota
	// Estimated is a prompt whose length is a guess: it teaches half as much.
	Estimated
	// Unknown is a prompt whose cached part is not known, or that waits for something in the engine before it is computed.
	Unknown
	// Loading is a prompt of which the engine first loads a part from a tier below its GPU, while it computes others.
	Loading
)

// Work is the prefill of one request as it was predicted when it was booked.
type Work struct {
	// Tokens are the uncached prompt tokens, Context the cached ones before them.
	Tokens, Context float64
	Certainty       Certainty
	// Silent is set when the first token cannot be seen (an answer that is not streamed).
	Silent bool
	// External is set when a caller outside of the fleet sends the request: when it began and had its first token is the caller's word.
	External bool
}

// known reports whether the engine's time for it shows how fast it is.
func (w *Work) known() bool { return w.Certainty < Unknown }

func (w *Work) loading() bool { return w.Certainty == Loading }

// Entry is a request's place in the account of its Rank. The zero value is not booked. It must not
// be copied or moved while it is booked.
type Entry struct {
	work       Work
	booked     time.Time
	past       past // of its rank's flow, without it
	prev, next *Entry
	pending    bool // without a first token
	void       bool // part of it was computed in a time that is not accounted for
}

// Decodes is an engine's decode work in addition to its prefill: sequences that read context tokens.
type Decodes struct{ Sequences, Context int }

const (
	// together is the time within which first tokens are taken to leave one engine step.
	together = 4 * time.Millisecond
	// pieces is the number of full steps of work from which a sample is complete: the start and the
	// end of a smaller one lie anywhere in a step that other prompts share.
	pieces = 2
)

// work is prefill that was sent and has no first token.
type work struct{ tokens, bent float64 }

func (w *work) add(o *Work, sign float64) {
	w.tokens += sign * o.Tokens
	w.bent += sign * o.Tokens * (o.Context + o.Tokens/2)
}

// account is the busy time of one engine: the work that was sent to it, and the samples that the work which it finished makes.
// Its user guards it.
type account struct {
	first, last *Entry    // booked and without a first token, in the order of booking, without prompts that load: they keep no engine busy
	since       time.Time // when the running sample began
	latest      time.Time // the first token seen last
	running     sample
	budget      float64 // tokens per step
	flow        flow
	pending     work // of the entries that are open
	silent      int  // open entries without a first token that can be seen
}

// piece is a sample that is over, with its time.
type piece struct {
	sample
	from, to time.Time
}

// book opens an entry.
func (a *account) book(e *Entry, w Work, now time.Time, d Decodes) {
	a.flow.advance(now, d)
	*e = Entry{work: w, booked: now, past: a.flow.past, pending: true}
	a.flow.sent(&w)
	if w.loading() {
		return
	}
	e.prev = a.last
	a.pending.add(&w, 1)
	if w.Silent {
		a.silent++
	}
	if a.last != nil {
		a.last.next = e
	} else {
		a.first = e
		a.begin(now, 1)
		if d.Sequences > 0 {
			a.running.steps = 0.5 // a decode step runs, and half of it is left on average
		}
	}
	a.last = e
}

// begin starts a sample.
func (a *account) begin(now time.Time, starts float64) {
	a.since, a.running = now, sample{starts: starts}
	if starts > 0 {
		a.latest = time.Time{}
	}
}

// correct replaces the work of an open entry.
func (a *account) correct(e *Entry, tokens, context float64) {
	if e.pending && !e.work.loading() {
		a.pending.add(&e.work, -1)
		e.work.Tokens, e.work.Context = tokens, context
		if e.work.Certainty == Estimated {
			e.work.Certainty = Exact
		}
		a.pending.add(&e.work, 1)
	}
}

// full ends the running sample at the first token seen last when it holds enough work to stand alone and now belongs to another step.
func (a *account) full(now time.Time) (piece, bool) {
	if a.running.tokens < pieces*a.budget || now.Sub(a.latest) <= together {
		return piece{}, false
	}
	p, ok := a.end(a.latest)
	a.begin(a.latest, 0)
	return p, ok
}

// served counts an open entry's work as done at now. It ends the running sample when no work is left.
func (a *account) served(e *Entry, now time.Time, d Decodes) (piece, bool) {
	if e.work.loading() {
		a.unlist(e)
		a.void(now)
		return piece{}, false
	}
	// Engines serve in order: silent ones before it are done, too.
	for p := a.first; p != nil && p != e; {
		next := p.next
		if p.work.Silent {
			a.credit(p, now)
		}
		p = next
	}
	a.credit(e, now)
	a.running.decode = d
	a.latest = now
	if a.first != nil {
		return piece{}, false
	}
	return a.end(now)
}

// credit counts an entry's work as done at now.
func (a *account) credit(e *Entry, now time.Time) {
	a.unlist(e)
	if e.void || !e.work.known() {
		a.begin(now, 0)
		return
	}
	s, n := &a.running, e.work.Tokens
	s.external = s.external || e.work.External
	s.tokens += n
	s.bent += n * (e.work.Context + n/2)
	s.steps += n / a.budget
	if e.work.Certainty == Estimated {
		s.doubt += n
	}
}

func (a *account) unlist(e *Entry) {
	if e.pending = false; e.work.loading() {
		return
	}
	a.pending.add(&e.work, -1)
	if e.work.Silent {
		a.silent--
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		a.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		a.last = e.prev
	}
	e.prev, e.next = nil, nil
}

// end ends the running sample. It reports false when nothing was finished in it.
func (a *account) end(at time.Time) (piece, bool) {
	p := piece{a.running, a.since, at}
	a.running = sample{}
	p.seconds = at.Sub(a.since).Seconds()
	if p.tokens <= 0 || p.seconds <= 0 {
		return p, false
	}
	if p.starts > 0 && p.steps < 1 {
		p.steps++ // the step is not full, but it is a step
	}
	p.doubt /= p.tokens
	return p, true
}

// void drops the running sample and the later additions of the open entries.
func (a *account) void(now time.Time) {
	for e := a.first; e != nil; e = e.next {
		e.void = true
	}
	a.begin(now, 0)
}

// late is by which factor the open work takes longer than m predicts for it; 0 while that cannot be seen.
func (a *account) late(now time.Time, m *Model) float64 {
	elapsed := now.Sub(a.since).Seconds()
	if a.silent > 0 || a.first == nil || elapsed < soonest {
		return 0
	}
	s := a.running
	s.tokens += a.pending.tokens
	s.bent += a.pending.bent
	s.steps += a.pending.tokens / a.budget
	return elapsed / s.predicted(m)
}

// answered closes the entry of an answer of output tokens that came whole, and returns the sample that it is, if it is one.
func (a *account) answered(e *Entry, now time.Time, output int, d Decodes) (s sample, ok bool) {
	a.unlist(e)
	a.void(now)
	d.Sequences, d.Context = max(0, d.Sequences-1), max(0, d.Context-int(e.work.Tokens+e.work.Context)-output)
	a.flow.advance(now, d)
	seconds := now.Sub(e.booked).Seconds()
	if !e.work.known() || output < 1 || seconds <= 0 {
		return s, false
	}
	s = a.flow.since(&e.past, seconds)
	s.steps = float64(output-1) + max(1, e.work.Tokens/a.budget)
	if s.decode.Sequences == 0 {
		s.decode = Decodes{Sequences: 1, Context: int(e.work.Tokens + e.work.Context)}
	}
	if e.work.Certainty == Estimated {
		s.doubt = 1
	}
	return s, true
}
