package grpcapi

import (
	"encoding/base64"
	"encoding/json"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvpilot/kvpilot/server/domain/apierror"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// paged is the request of a list.
type paged interface {
	proto.Message
	GetPageSize() uint32
	GetPageToken() string
}

// pageToken is the content of a token: the last entry of a page, and the list that it belongs to. The next page begins behind that
// entry, whether or not it still exists.
type pageToken[Entry any] struct {
	Last Entry  `json:"last"`
	List uint64 `json:"list"`
}

// tokenAfter returns the token of the page behind an entry.
func tokenAfter[Entry any](in paged, last Entry) string {
	text, err := json.Marshal(pageToken[Entry]{last, listOf(in)})
	if err != nil {
		return "" // entries are plain data
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// readToken returns the entry behind which a page begins. given is false for the first page.
func readToken[Entry any](in paged) (last Entry, given bool, err error) {
	if in.GetPageToken() == "" {
		return last, false, nil
	}
	var token pageToken[Entry]
	text, err := base64.RawURLEncoding.DecodeString(in.GetPageToken())
	if err == nil {
		err = json.Unmarshal(text, &token)
	}
	if err != nil || token.List != listOf(in) {
		return last, false, apierror.New(apierror.InvalidBody,
			"page_token: must be the next_page_token of an answer to the same request, or empty", err, apierror.WithParam("page_token"))
	}
	return token.Last, true, nil
}

// listOf is a digest of the fields of a request that select entries.
func listOf(in paged) uint64 {
	filters := proto.Clone(in).ProtoReflect()
	for _, name := range []protoreflect.Name{"page_size", "page_token", "only_chosen"} {
		if fd := filters.Descriptor().Fields().ByName(name); fd != nil {
			filters.Clear(fd)
		}
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(filters.Interface())
	if err != nil {
		return 0
	}
	sum := fnv.New64a()
	_, _ = sum.Write(text)
	return sum.Sum64()
}

// mostReplicas bounds the replicas of one answer.
const mostReplicas = 500

// replicaPage returns the replicas of the page that a request wants, of a list in the order of ids, and the token of the next page.
func replicaPage(in paged, list []*replica.Replica) ([]*replica.Replica, string, error) {
	last, given, err := readToken[replica.ID](in)
	if err != nil {
		return nil, "", err
	}
	for given && len(list) > 0 && list[0].ID <= last {
		list = list[1:]
	}
	size := mostReplicas
	if n := in.GetPageSize(); n > 0 {
		size = int(min(n, mostReplicas))
	}
	if len(list) <= size {
		return list, "", nil
	}
	return list[:size], tokenAfter(in, list[size-1].ID), nil
}
