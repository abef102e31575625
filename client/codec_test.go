package client

import (
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"

	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
)

func TestMessagesOfEverySizeAreEncodedAlike(t *testing.T) {
	c := codec{encoding.GetCodecV2("proto")}
	for _, ids := range []int{0, 1, 8_000, 8_192, 100_000, pooled / 4, 300_000} {
		want := &kvpilotv1.TokenIds{Ids: make([]uint32, ids)}
		for i := range want.Ids {
			want.Ids[i] = uint32(i)
		}
		data, err := c.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &kvpilotv1.TokenIds{}
		if err := c.Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%d ids: error %v, equal %t", ids, err, proto.Equal(got, want))
		}
		data.Free()
	}
	if _, err := c.Marshal("no message"); err == nil {
		t.Error("something else than a message was encoded")
	}
	if _, err := c.Marshal(&kvpilotv1.TokenizeRequest{Model: string(make([]byte, lessThanPooled)) + "\xff"}); err == nil {
		t.Error("a name that is no UTF-8 was encoded")
	}
}
