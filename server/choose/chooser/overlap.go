package chooser

import (
	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/server/domain/decision"
)

// overlap asks the index what each rank holds of the prompt.
func (c *Chooser) overlap(s *scratch, req *Request) {
	if req.Hashes == nil {
		return
	}
	d := &s.d
	for _, size := range s.sizes {
		if s.known != nil && len(s.sizes) == 1 {
			s.overlaps = append(s.overlaps[:0], s.known...)
		} else {
			s.overlaps = c.params.Index.Match(s.overlaps[:0], req.Hashes(size))
		}
		for _, o := range s.overlaps {
			at := s.pool.at(o.Slot)
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
				cand.GPU = max(cand.GPU, uint32(min(a.Held, c.params.Index.Reach(o.Slot, req.PromptTokens))/size*size))
			}
			if req.Unread {
				cand.GPU, cand.CPU, cand.Disk = 0, 0, 0
			}
			if !req.Estimated && req.PromptTokens > 0 {
				cand.Cut(c.params.Index.Reach(o.Slot, req.PromptTokens) / size * size)
			}
			cand.Cut(d.PromptTokens)
		}
	}
}

// hashesFor returns the prompt's hashes in the chosen rank's block size.
func hashesFor(req *Request, cand *decision.Candidate) []blockhash.Hash {
	if req.Hashes == nil {
		return nil
	}
	return req.Hashes(int(cand.BlockSize))
}
