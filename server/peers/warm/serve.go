package warm

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerv1 "github.com/kvpilot/kvpilot/gen/kvpilot/peer/v1"
	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

const (
	// maxServed is the number of peers that may pull at the same time; further ones try another router.
	maxServed = 2
	// pieceBytes is the size of a message, maxPiece the largest that the contract allows.
	pieceBytes = 256 << 10
	maxPiece   = 1 << 20
)

// PullIndex sends this router's index to a peer.
func (w *Warm) PullIndex(from string, in *peerv1.PullIndexRequest, out grpc.ServerStreamingServer[peerv1.PullIndexResponse]) error {
	select {
	case w.serving <- struct{}{}:
		defer func() { <-w.serving }()
	default:
		w.metrics.Served.Add(outcomeBusy)
		return status.Error(codes.ResourceExhausted, "as many routers as may pull at the same time do; ask another one")
	}
	wanted := map[replica.ID]bool{}
	for _, id := range in.GetReplicaIds() {
		wanted[replica.ID(id)] = true
	}
	begin := time.Now()
	to := &pieces{out: out}
	err := w.params.Index.SnapshotOf(to, func(id replica.ID, state kvblock.FeedState) bool {
		return (len(wanted) == 0 || wanted[id]) && (!in.GetExact() || state == kvblock.FeedExact)
	})
	if err == nil {
		err = to.flush()
	}
	if err != nil {
		w.metrics.Served.Add(outcomeFailed)
		w.log.Info("a peer did not take this router's index", "peer", from, "bytes", to.bytes, "error", err)
		return err
	}
	w.metrics.Served.Add(outcomeOK)
	w.log.Info("a peer pulled this router's index", "peer", from, "bytes", to.bytes, "took", time.Since(begin).Round(time.Millisecond))
	return nil
}

// pieces writes bytes as messages of a bounded size. A message is not used again: gRPC may still hold it.
type pieces struct {
	out   grpc.ServerStreamingServer[peerv1.PullIndexResponse]
	next  []byte
	bytes int64
}

func (p *pieces) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if p.next == nil {
			p.next = make([]byte, 0, pieceBytes)
		}
		fits := min(len(b), pieceBytes-len(p.next))
		p.next = append(p.next, b[:fits]...)
		b = b[fits:]
		if len(p.next) == pieceBytes {
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// flush sends the bytes written since.
func (p *pieces) flush() error {
	if len(p.next) == 0 {
		return nil
	}
	if err := p.out.Send(&peerv1.PullIndexResponse{Data: p.next}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	p.bytes += int64(len(p.next))
	p.next = nil
	return nil
}
