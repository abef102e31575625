package enginemodel_test

import (
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/blockhash"
	"github.com/kvpilot/kvpilot/sim/enginemodel"
)

// stored counts the blocks that a machine stores and removes.
type stored struct{ in, out int }

func (s *stored) Stored(_ *enginemodel.Sequence, from, to int) { s.in += to - from }
func (s *stored) Removed(blockhash.Hash)                       { s.out++ }

func TestPinnedBlocksStayAndReceivedOnesAreFound(t *testing.T) {
	sink := &stored{}
	m := enginemodel.New(enginemodel.Config{BlockSize: 4, Blocks: 8, MaxBatchedTokens: 64, MaxSeqs: 4, Timing: enginemodel.Timing{PrefillRate: 1000, Speed: 1}}, nil, sink)
	keys := func(from, n int) []blockhash.Hash {
		var list []blockhash.Hash
		for i := range n {
			list = append(list, blockhash.Hash(from+i))
		}
		return list
	}
	first := &enginemodel.Sequence{Prompt: 18, Keys: keys(1, 4)}
	m.Receive(first)
	if sink.in != 4 || m.Pool().Match(first.Keys) != 4 || m.Pool().Free() != 8 {
		t.Fatalf("%d blocks stored, %d found, %d free", sink.in, m.Pool().Match(first.Keys), m.Pool().Free())
	}
	pinned := m.Pin(first.Keys)
	if len(pinned) != 4 || m.Pool().Free() != 4 {
		t.Fatalf("%d blocks pinned, %d free", len(pinned), m.Pool().Free())
	}
	second := &enginemodel.Sequence{Prompt: 24, Keys: keys(100, 6)}
	m.Receive(second)
	if got := m.Pool().Match(second.Keys); got != 4 || m.Pool().Match(first.Keys) != 4 {
		t.Errorf("with four blocks free, %d of six were received; of the pinned ones %d are left", got, m.Pool().Match(first.Keys))
	}
	m.Receive(second) // again: nothing is new but the two that lacked memory
	m.Unpin(pinned)
	if m.Pool().Free() != 8 {
		t.Errorf("%d blocks are free after the last pin", m.Pool().Free())
	}
	m.Receive(second)
	if got := m.Pool().Match(second.Keys); got != 6 || sink.out == 0 {
		t.Errorf("%d of six were received, %d removed", got, sink.out)
	}
	m.Submit(second)
	m.Plan(1)
	if second.Cached() != 20 {
		t.Errorf("%d tokens are cached, want all full blocks but the last", second.Cached())
	}
}
