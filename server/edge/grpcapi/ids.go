package grpcapi

import (
	"sync"

	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

const (
	// listIDs is the length of the lists that are reused, 64 KiB: twice a usual prompt.
	listIDs = 16 << 10
	// fewIDs is the length up to which a list of its own costs less memory than a share of those.
	fewIDs = 2 << 10
)

// idList is a list of token ids that one request after the other uses. A new list of 8,192 ids for each decision is memory that
// no cache has: clearing and filling it took a tenth of the decision.
type idList [listIDs]uint32

// idLists has the lists that no request uses.
var idLists = sync.Pool{New: func() any { return new(idList) }}

// newIDs returns a list of n ids with any content.
func newIDs(n int) []uint32 {
	if n <= fewIDs || n > listIDs {
		return make([]uint32, n)
	}
	return idLists.Get().(*idList)[:n]
}

// Done releases the memory of a message that Decode has read. Its call's handler MUST have returned; the answer need not have been sent. A
// message whose ids may be in use still keeps them: they are part of the answer, or of the answer that a repeated request will get.
func (Messages) Done(m proto.Message) {
	in, ok := m.(*kvpilotv1.ChooseReplicaRequest)
	if !ok || in.GetReturnTokenIds() || in.GetRequestId() != "" {
		return
	}
	list := in.GetTokenIds().GetIds()
	if cap(list) != listIDs {
		return
	}
	in.Prompt = nil
	idLists.Put((*idList)(list[:listIDs]))
}
