package guard

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/kvpilot/kvpilot/server/domain/caller"
	"github.com/kvpilot/kvpilot/server/kit/ledger"
)

// senders returns the sender of a call, and whether its method is known.
type senders func(method string, md metadata.MD) (*caller.Caller, bool)

// strangers are the senders of methods that need no credentials.
var strangers = senders(func(string, metadata.MD) (*caller.Caller, bool) { return nil, false })

func (f senders) Known(method string) bool {
	_, known := f(method, nil)
	return known
}

func (f senders) Admit(_ context.Context, method string, md metadata.MD) (*caller.Caller, error) {
	who, _ := f(method, md)
	return who, nil
}

func newLedger(bytes int64) *ledger.Ledger {
	return ledger.New(ledger.Config{Bytes: bytes, Places: 1 << 20}, nil)
}

func TestLocalHost(t *testing.T) {
	for host, want := range map[string]bool{
		"": true, "localhost": true, "LOCALHOST:80": true, "a.localhost": true, "127.0.0.1:8080": true, "127.9.9.9": true, "[::1]:80": true, "localhost.": true,
		"evil.example": false, "evil.example:8080": false, "localhost.evil.example": false, "10.0.0.7": false, "notlocalhost": false, "router.example": true,
	} {
		if got := localHost(host, []string{"router.example"}); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
	if !localHost("anything", []string{"*"}) {
		t.Error("* allows all")
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "0.0.0.0:1": false, "10.0.0.7:1": false, "[::]:1": false} {
		a, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if Loopback(a) != want {
			t.Errorf("Loopback(%s) is %t", address, !want)
		}
	}
}

// Frames that grpc-go drops are counted until they are freed, and not longer.
func TestDroppedFramesAreGivenBack(t *testing.T) {
	b := newLedger(1 << 20)
	over := 0
	f := &frames{ledger: b, over: func() { over++ }}
	p := f.Get(10_000)
	if b.Held(ledger.Body) != largeFrame {
		t.Errorf("%d bytes counted", b.Held(ledger.Body))
	}
	*p = (*p)[:5]
	f.Put(p)
	if b.Held(ledger.Body) != 0 {
		t.Errorf("%d bytes counted of a frame that was put back", b.Held(ledger.Body))
	}
	for range 100 {
		f.Get(largeFrame)
	}
	if over == 0 {
		t.Error("the budget was exceeded, and over was not called")
	}
	for deadline := time.Now().Add(10 * time.Second); b.Held(ledger.Body) > 0; time.Sleep(time.Millisecond) {
		runtime.GC()
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are counted for ever", b.Held(ledger.Body))
		}
	}
}

func TestLargeBodiesAreDecodedWithoutACopy(t *testing.T) {
	b := newLedger(1 << 30)
	c := newCodec(plain{})
	var own ledger.Account
	b.Open(&own, ledger.Sender{Tenant: "a"})
	want := &httpbody.HttpBody{ContentType: "application/json", Data: []byte(strings.Repeat("a", 200_000))}
	wire, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &httpbody.HttpBody{}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &incoming{got, &own}); err != nil || !proto.Equal(got, want) || noted(got) != nil {
		t.Errorf("%v, equal %t", err, proto.Equal(got, want))
	}
	if b.Held(ledger.Body) != 0 {
		t.Errorf("%d bytes are still counted", b.Held(ledger.Body))
	}
	var account ledger.Account
	newLedger(10).Open(&account, ledger.Sender{Tenant: "a"})
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &incoming{got, &account}); err != nil || noted(got) == nil {
		t.Errorf("a body beyond the budget: %v, noted %v", err, noted(got))
	}
}

// A message of several frames is put together in a buffer that the next one uses again.
func TestMessagesOfSeveralFramesAreDecoded(t *testing.T) {
	b := newLedger(1 << 30)
	c := newCodec(plain{})
	var own ledger.Account
	b.Open(&own, ledger.Sender{Tenant: "a"})
	for _, size := range []int{0, 1, 20_000, 32_768, 33_000, smallMessage - 100, smallMessage + 100} {
		for _, letter := range []string{"a", "b"} {
			want := &httpbody.HttpBody{ContentType: letter, Data: []byte(strings.Repeat(letter, size))}
			wire, err := proto.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var data mem.BufferSlice
			for frame := range slices.Chunk(wire, largeFrame) {
				data = append(data, mem.SliceBuffer(frame))
			}
			got := &httpbody.HttpBody{}
			if err := c.Unmarshal(data, &incoming{got, &own}); err != nil || !proto.Equal(got, want) {
				t.Errorf("%d bytes of %s: %v, equal %t", size, letter, err, proto.Equal(got, want))
			}
		}
	}
	if b.Held(ledger.Body) != 0 {
		t.Errorf("%d bytes are still counted", b.Held(ledger.Body))
	}
}

// A call that sends for too long, and one that reads nothing, end; one that does neither goes on.
func TestRoundsEndCallsThatTakeTooLong(t *testing.T) {
	d := New(Limits{Receive: 8 * time.Second, Stall: 16 * time.Second}, Params{
		Ledger: newLedger(1 << 20), Senders: senders(func(string, metadata.MD) (*caller.Caller, bool) { return &caller.Caller{Tenant: "team-a"}, true }),
	})
	ctx, err := d.tap(t.Context(), &tap.Info{FullMethodName: "/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	slow := FromContext(ctx)
	ctx, _ = d.tap(t.Context(), &tap.Info{FullMethodName: "/a/b"})
	stalled := FromContext(ctx)
	ctx, _ = d.tap(t.Context(), &tap.Info{FullMethodName: "/a/b"})
	quiet := FromContext(ctx)
	stalled.receiving.Store(false)
	stalled.sending.Store(1)
	quiet.receiving.Store(false)
	for now := int64(2); now < 12; now++ {
		d.round(now)
	}
	if slow.Err() == nil || stalled.Err() != nil || quiet.Err() != nil {
		t.Errorf("after 10 rounds: slow %v, stalled %v, quiet %v", slow.Err(), stalled.Err(), quiet.Err())
	}
	for now := int64(12); now < 30; now++ {
		d.round(now)
	}
	if stalled.Err() == nil || quiet.Err() != nil || quiet.Caller.Tenant != "team-a" {
		t.Errorf("after 28 rounds: stalled %v, quiet %v", stalled.Err(), quiet.Err())
	}
	quiet.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls.next != &d.calls {
		t.Error("ended calls are still listed")
	}
}
