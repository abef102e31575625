package recorder

// Batch is the spans of several traces on their way to a collector. It belongs to one goroutine.
type Batch struct {
	text  []byte
	spans int
}

// Begin empties the batch and keeps its memory.
func (b *Batch) Begin(r *Recorder) {
	if b.text == nil {
		b.text = make([]byte, 0, 64*usualText)
	}
	b.text, b.spans = append(b.text[:0], r.about...), 0
}

// Add writes or copies a trace's spans.
func (b *Batch) Add(t *Trace) {
	if t.record != nil && t.text == nil { // nothing is written yet: it can be written in place
		t.text = b.text
		t.write()
		b.text, t.text = t.text, nil
	} else {
		t.write()
		b.text = append(b.text, t.text...)
	}
	b.spans += t.spans
}

// Len is how many spans there are.
func (b *Batch) Len() int { return b.spans }

// Message is the batch as a ResourceSpans without its tag and length, valid until Begin or Drop.
func (b *Batch) Message(r *Recorder) []byte {
	b.text = appendString(b.text, 3, r.Resource.SchemaURL())
	return b.text
}

// Drop has the batch forget its memory, which somebody else may still be reading.
func (b *Batch) Drop() { b.text = nil }
