package recorder

// Batch is the spans of several traces on their way to a collector. It belongs to one goroutine.
type Batch struct {
	parts []part
	size  int
	spans int
}

// part is the spans of one scope.
type part struct {
	scope *scope
	text  []byte
}

// Add copies a trace's spans.
func (b *Batch) Add(t *Trace) {
	t.write()
	from := 0
	for i := range t.runs {
		p := b.part(t.runs[i].scope)
		p.text = append(p.text, t.text[from:t.runs[i].end]...)
		from = t.runs[i].end
	}
	b.size += len(t.text)
	b.spans += t.spans
}

// part finds or makes the part of a scope; there are few.
func (b *Batch) part(s *scope) *part {
	for i := range b.parts {
		if b.parts[i].scope == s {
			return &b.parts[i]
		}
	}
	b.parts = append(b.parts, part{scope: s})
	return &b.parts[len(b.parts)-1]
}

// Size is how many bytes the spans take.
func (b *Batch) Size() int { return b.size }

// Len is how many spans there are.
func (b *Batch) Len() int { return b.spans }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	for i := range b.parts {
		b.parts[i].text = b.parts[i].text[:0]
	}
	b.size, b.spans = 0, 0
}

// Message writes a batch behind to: a ResourceSpans without its tag and length.
func (r *Recorder) Message(to []byte, b *Batch) []byte {
	to = append(to, r.about...)
	for i := range b.parts {
		p := &b.parts[i]
		if len(p.text) == 0 {
			continue
		}
		var mark int
		to, mark = begin(to, 2)
		to = append(append(to, p.scope.about...), p.text...)
		to = end(append(to, p.scope.last...), mark)
	}
	return appendString(to, 3, r.Resource.SchemaURL())
}
