package opening

import (
	"github.com/kvpilot/kvpilot/server/domain/prompt"
	"github.com/kvpilot/kvpilot/server/wire/sse"
)

// arrival keeps the beginning of a stream that is decoded from another replica's cache until it shows whether that was read: vLLM sends
// the head of the answer first, and an error in the stream when it cannot read the cache. The zero value keeps nothing.
type arrival struct {
	waits bool
	scan  sse.Scanner
	kept  []byte
	// lost is set when the stream began with an error.
	lost bool
}

// begin makes the arrival wait for the first event of a stream.
func (r *arrival) begin(api prompt.API) {
	r.waits = true
	r.scan.Reset(api, true)
}

// take returns the bytes of the stream that can be used now that piece has come.
func (r *arrival) take(piece []byte) []byte {
	if !r.waits {
		return piece
	}
	r.kept = append(r.kept, piece...)
	r.scan.Feed(piece)
	switch {
	case r.scan.Failed() && r.scan.ContentEvents() == 0:
		r.lost = true
		return nil
	case r.scan.Events() == 0 && !r.scan.Done() && len(r.kept) <= maxOpening:
		return nil
	}
	r.waits = false
	return r.kept
}
