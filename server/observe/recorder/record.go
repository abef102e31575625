package recorder

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// record is a trace as far as this process has a part in it.
type record struct {
	recorder *Recorder
	began    time.Time               // spans count their times from here
	result   sdktrace.SamplingResult // for all its spans
	chosen   bool                    // by the sampler
	shown    bool
	first    Span

	mu      sync.Mutex
	begun   int         // guarded by mu: spans
	ended   []*Span     // guarded by mu: spans below the first one
	stories []leftStory // guarded by mu
	failed  bool        // guarded by mu
	fate    fate        // guarded by mu
}

// fate is the result of a trace when its first span ended.
type fate uint8

const (
	fateOpen    fate = iota // it has not ended
	fateDropped             // it is not kept
	fateKept
)

// leftStory is a story and the span that it was left with.
type leftStory struct {
	span  *Span
	story Story
}

// admit counts a span that begins, unless there are too many.
func (r *record) admit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun == maxSpansPerTrace {
		return false
	}
	r.begun++
	return true
}

// moment is a time as the trace's spans have it. Differences come from the monotonic clock.
func (r *record) moment(at time.Time) time.Time { return r.began.Add(at.Sub(r.began)) }

// end ends a span; with the first one the trace is over, and its fate is decided. A span that
// ends after its trace makes a Trace of its own, or nothing when the trace was not kept.
func (r *record) end(s *Span, at time.Time) {
	r.mu.Lock()
	if s.over.Load() {
		r.mu.Unlock()
		return
	}
	s.over.Store(true)
	s.stop = r.moment(at)
	r.failed = r.failed || s.Status().Code == codes.Error
	if s != &r.first {
		late := r.fate == fateKept
		if r.fate == fateOpen {
			r.ended = append(r.ended, s)
		}
		r.mu.Unlock()
		if late {
			r.recorder.To.Keep(&Trace{ended: []*Span{s}})
		}
		return
	}
	kept := r.chosen || r.failed || r.recorder.isSlow(s.stop.Sub(s.StartTime()))
	whole := &Trace{ended: append(r.ended, s), stories: r.stories, left: maxSpansPerTrace - r.begun}
	if r.fate = fateDropped; kept {
		r.fate = fateKept
	}
	r.ended, r.stories = nil, nil
	r.mu.Unlock()
	r.recorder.open.Add(-1)
	if r.shown {
		r.recorder.Display.Add(whole.Spans())
	}
	if kept {
		r.recorder.To.Keep(whole)
		return
	}
	whole.Drop()
}

// Trace holds spans of one trace that have ended. Most are drawn when they are asked for. It belongs to
// one goroutine at a time.
type Trace struct {
	ended   []*Span // the first one of a whole trace comes last
	stories []leftStory
	left    int // how many more spans there may be
	spans   []sdktrace.ReadOnlySpan
}

// Spans are the trace's, as the SDK hands them to exporters. The first one of a trace comes last.
func (t *Trace) Spans() []sdktrace.ReadOnlySpan {
	if t.ended == nil {
		return t.spans
	}
	below := len(t.ended) - 1
	c := newCanvas(t.left)
	defer c.free()
	c.to = make([]sdktrace.ReadOnlySpan, 0, len(t.ended)+usualSpans*len(t.stories))
	for _, s := range t.ended[:below] {
		c.finish(s)
	}
	t.drawStories(c)
	c.flush()
	c.finish(t.ended[below])
	t.ended, t.spans = nil, c.to
	return t.spans
}

// drawStories draws the stories and frees them.
func (t *Trace) drawStories(c *Canvas) {
	for i, st := range t.stories {
		c.on(st.span)
		st.story.Draw(c)
		st.story.Free()
		t.stories[i] = leftStory{}
	}
	t.stories = nil
}

// Drop frees the stories without drawing them. The trace is not used any more.
func (t *Trace) Drop() {
	for _, st := range t.stories {
		st.story.Free()
	}
	*t = Trace{}
}

// Lose is Drop for a trace that was to be kept. It returns the number of spans that are lost.
func (t *Trace) Lose() int {
	if t.ended == nil {
		return len(t.spans)
	}
	c := newCanvas(t.left)
	defer c.free()
	c.counts = true
	t.drawStories(c)
	lost := len(t.ended) + t.left - c.left
	*t = Trace{}
	return lost
}

// usualSpans is how many spans are drawn from a story, about, and usualSize is the size of one in bytes.
const (
	usualSpans = 6
	usualSize  = 512
)

// Size is about how many bytes the spans take.
func (t *Trace) Size() int {
	return usualSize * (len(t.ended) + usualSpans*len(t.stories) + len(t.spans))
}
