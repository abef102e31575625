package evaluate

import (
	"github.com/kvpilot/kvpilot/server/choose/chooser/ask"
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
			if req.Unread {
				cand.GPU, cand.CPU, cand.Disk = 0, 0, 0
			}
			if !req.Estimated && req.PromptTokens > 0 {
				cand.Cut(e.Index.Reach(o.Slot, req.PromptTokens) / size * size)
			}
			cand.Cut(d.PromptTokens)
		}
	}
}
