package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// overlap asks the index for each rank's part of the prompt.
func (e *Evaluator) overlap(s *Evaluation, req *ask.Request) {
	if req.Hashes == nil {
		return
	}
	d, m := &s.Decision, &s.Matching
	for _, size := range m.sizes {
		if m.Known != nil && len(m.sizes) == 1 {
			m.Overlaps = append(m.Overlaps[:0], m.Known...)
		} else {
			m.Overlaps = e.Index.Match(m.Overlaps[:0], req.Hashes(size))
		}
		for _, o := range m.Overlaps {
			at := s.Pool.At(o.Slot)
			if at < 0 {
				continue
			}
			cand := &d.Candidates[at]
			if int(cand.BlockSize) != size {
				continue
			}
			cand.GPU, cand.CPU, cand.Disk = o.GPU*uint32(size), o.CPU*uint32(size), o.Disk*uint32(size)
			if rk := s.ranks[at]; rk != nil {
				discount(cand, rk)
			}
			if a := &req.Answer; a.Slot == o.Slot && a.Held > a.Known && int(cand.GPU) >= a.Known/size*size {
				cand.GPU = max(cand.GPU, uint32(min(a.Held, e.Index.Reach(o.Slot, req.PromptTokens))/size*size))
			}
			e.bound(cand, req, d.PromptTokens)
		}
	}
	if req.Directory != nil {
		e.named(s, req)
	}
}

// bound cuts a rank's overlap to the part of the prompt that its engine can take from its cache.
func (e *Evaluator) bound(cand *decision.Candidate, req *ask.Request, tokens int) {
	if req.Unread {
		cand.GPU, cand.CPU, cand.Disk = 0, 0, 0
	}
	if size := int(cand.BlockSize); !req.Estimated && req.PromptTokens > 0 {
		cand.Cut(e.Index.Reach(cand.Slot, req.PromptTokens) / size * size)
	}
	cand.Cut(tokens)
}

// named adds the parts of the prompt that a directory names and the index does not have. GPU memory is the index's own.
func (e *Evaluator) named(s *Evaluation, req *ask.Request) {
	d := &s.Decision
	for i := range req.Directory.Held {
		h := &req.Directory.Held[i]
		at := s.Pool.At(h.Slot)
		if at < 0 {
			continue
		}
		cand := &d.Candidates[at]
		had, size := cand.Tokens(), max(1, int(cand.BlockSize))
		if int(had) < h.From {
			continue // it lacks the beginning, which engines load nothing without
		}
		host, all := uint32(h.Host/size*size), uint32(h.Store/size*size)
		host = max(host, cand.GPU+cand.CPU)
		all = max(all, had, host)
		cand.CPU, cand.Disk = host-cand.GPU, all-host
		e.bound(cand, req, d.PromptTokens)
		cand.Named = cand.Tokens() - min(had, cand.Tokens())
	}
}
