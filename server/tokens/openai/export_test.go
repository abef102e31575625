package openai

// WithPromptIDs returns the body with the prompt as token ids; the body as it is where that is not possible.
func (r *Request) WithPromptIDs(ids []uint32) []byte {
	edit, ok := r.PromptIDsEdit(ids)
	if !ok {
		return r.Body
	}
	return r.Edit(edit)
}

func (c *Chunk) CachedTokens() int { return c.cachedTokens() }

// ReadChunk is what Chunks are compared with.
func ReadChunk(data []byte, c *Chunk) bool { return readChunk(data, c) }

// Remembered is the number of bodies that m remembers.
func (m *Memory) Remembered() int { return m.known.Stats().Items }
