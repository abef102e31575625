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

// A sequence whose prompt is computed elsewhere holds memory for all of it from its turn in line on, delays no step while it is read, and
// then computes one token.
func TestRemotePromptIsReadIntoMemoryThatIsHeld(t *testing.T) {
	sink := &stored{}
	m := enginemodel.New(enginemodel.Config{BlockSize: 4, Blocks: 8, MaxBatchedTokens: 64, MaxSeqs: 4, WholePrompts: true, Timing: enginemodel.Timing{PrefillRate: 1000, HalfContext: 1e9, Speed: 1}}, nil, sink)
	keys := func(from, n int) []blockhash.Hash {
		var list []blockhash.Hash
		for i := range n {
			list = append(list, blockhash.Hash(from+i))
		}
		return list
	}
	local := &enginemodel.Sequence{Prompt: 8, Most: 3, Keys: keys(1, 2)}
	m.Submit(local)
	m.Plan(1)
	m.Complete(1)
	remote := &enginemodel.Sequence{Prompt: 18, Most: 2, Keys: append(keys(1, 2), keys(100, 2)...), Remote: true}
	blocked := &enginemodel.Sequence{Prompt: 20, Most: 1, Remote: true}
	m.Submit(remote)
	m.Submit(blocked)
	step := m.Plan(1)
	if len(step.Reads) != 1 || step.Reads[0] != remote || step.PromptTokens != 0 || step.Steps != 1 {
		t.Fatalf("planned %+v, want a decode step and one read", step)
	}
	if remote.Cached() != 8 || m.Pool().Free() != 2 || len(m.Waiting()) != 1 {
		t.Errorf("%d tokens were held, %d blocks are free, %d wait", remote.Cached(), m.Pool().Free(), len(m.Waiting()))
	}
	m.Complete(1)
	before := sink.in
	m.Arrive(remote)
	if sink.in != before+2 {
		t.Errorf("%d blocks were stored, want the two that were missing", sink.in-before)
	}
	if step = m.Plan(1); step.PromptTokens != 1 || len(step.Reads) != 0 {
		t.Errorf("planned %+v, want the prompt's last token", step)
	}
	if out := m.Complete(1); len(out) != 2 || remote.Made() != 1 {
		t.Errorf("%d sequences got a token, the remote one has %d", len(out), remote.Made())
	}
	m.Plan(10)
	m.Complete(1)
	if remote.Live() || local.Live() {
		t.Error("an answer has not ended")
	}
	if step = m.Plan(1); len(step.Reads) != 1 || step.Steps != 0 {
		t.Errorf("planned %+v with all memory free, want one read", step)
	}
	if !m.Abort(blocked) || m.Pool().Free() != 8 {
		t.Errorf("an aborted read leaves %d of 8 blocks free", m.Pool().Free())
	}
	m.Arrive(blocked)
	if len(m.Waiting()) != 0 {
		t.Error("what was aborted waits again")
	}
}
