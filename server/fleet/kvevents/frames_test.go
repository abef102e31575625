package kvevents_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"sync"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// hexFrames is a message as the vectors write it.
type hexFrames []string

func (h hexFrames) frames(t *testing.T) [][]byte {
	t.Helper()
	var list [][]byte
	for _, s := range h {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

// TestFramesOfEveryVersion plays the recorded frames of the live stream and of both replay layouts.
func TestFramesOfEveryVersion(t *testing.T) {
	raw, err := os.ReadFile("../../../../shared/testdata/vllm-events/wire_frames.json")
	if err != nil {
		t.Skipf("vLLM's own frames are not at hand: %v", err)
	}
	var file struct {
		Pub      struct{ Frames hexFrames }
		PubEmpty struct{ Frames hexFrames } `json:"pub_empty_topic"`
		Request  struct{ Frames hexFrames } `json:"replay_request"`
		Old      struct {
			Reply hexFrames `json:"reply_frames"`
			End   hexFrames `json:"end_frames"`
		} `json:"replay_up_to_0.25"`
		New struct {
			Reply hexFrames `json:"reply_frames"`
			End   hexFrames `json:"end_frames"`
		} `json:"replay_from_0.26"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name             string
		live, reply, end hexFrames
	}{
		{"with topic, replay up to 0.25", file.Pub.Frames, file.Old.Reply, file.Old.End},
		{"without topic, replay from 0.26", file.PubEmpty.Frames, file.New.Reply, file.New.End},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pub := zmtp.NewPub(0)
			ln := listen(t, "tcp://127.0.0.1:0")
			ctx, cancel := context.WithCancel(t.Context())
			var served sync.WaitGroup
			defer served.Wait()
			defer cancel()
			served.Go(func() { pub.Serve(ctx, ln) })
			replays := replayServer(t, func(c *zmtp.Conn, from uint64) {
				if from == 0 {
					c.Send(tt.reply.frames(t)...)
				}
				c.Send(tt.end.frames(t)...)
			})
			p, sink := startPlane(t, quick())
			p.Add(slot, replica.Events{Endpoint: "tcp://" + ln.Addr().String(), Replay: replays}, "f")
			eventually(t, "the replayed batch", func() bool { s, _ := p.Status(slot); return s.Next == 1 && s.State == kvblock.FeedExact })
			eventually(t, "subscribed", func() bool { return pub.Subscriptions() == 1 })
			pub.Send(tt.live.frames(t)...) // batch 0 again: the replay was ahead
			next := tt.live.frames(t)
			next[1] = []byte{0, 0, 0, 0, 0, 0, 0, 1}
			next[2] = vllmtest.Newest().Batch(1, 0, vllmtest.Stored([]uint64{5}, nil, blockTokens(5), 4))
			pub.Send(next...)
			eventually(t, "the live batch", func() bool { s, _ := p.Status(slot); return s.Next == 2 && len(sink.content(slot)) == 1 })
			if s, _ := p.Status(slot); s.Batches != 2 || s.Replayed != 1 || s.Resets != 0 {
				t.Errorf("status = %s", dump(s))
			}
		})
	}
	ours := zmtp.AppendMessage(nil, nil, make([]byte, 8))
	if want := zmtp.AppendMessage(nil, file.Request.Frames.frames(t)...); string(ours) != string(want) {
		t.Errorf("the request is %x, vLLM wants %x", ours, want)
	}
}
