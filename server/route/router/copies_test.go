package router_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/choose/chooser"
	"github.com/kvpilot/kvpilot/server/domain/replica"
)

// copied has the beginning of a prompt copied from r0 to r1, and returns how the copy ended and whether the target was asked.
func (p *pair) copied(tokens int, predicted time.Duration) (end chooser.CopyEnd, sent bool) {
	p.t.Helper()
	view := p.params.Registry.Snapshot()
	place := func(id replica.ID) chooser.Place {
		r, ok := view.Replica(id)
		if !ok {
			p.t.Fatalf("no replica %s", id)
		}
		return chooser.Place{Replica: r, Slot: r.Slots[0]}
	}
	prompt := make([]uint32, longPrompt)
	for i := range prompt {
		prompt[i] = uint32(i + 7)
	}
	notes := &copyNotes{ends: make(chan chooser.CopyEnd, 2)}
	p.router.CopyPrefix("decision-1", "m", "salt", prompt, &chooser.Prefix{
		From: place("r0"), To: place("r1"), Tokens: tokens, Moved: tokens, Predicted: predicted, CopyReports: notes,
	})
	select {
	case end = <-notes.ends:
	case <-time.After(20 * time.Second):
		p.t.Fatal("the copy does not end")
	}
	return end, notes.sent
}

// copyNotes keeps the reports of a copy.
type copyNotes struct {
	sent bool
	ends chan chooser.CopyEnd
}

func (n *copyNotes) Sent()                     { n.sent = true }
func (n *copyNotes) Ended(how chooser.CopyEnd) { n.ends <- how }

func TestPrefixIsCopiedByTwoRequestsOfTheSameIDs(t *testing.T) {
	for _, connector := range []string{"nixl", "nixl-push"} {
		t.Run(connector, func(t *testing.T) {
			var source http.HandlerFunc
			if connector == "nixl-push" {
				source = text(200, strings.Replace(prefilled(&leg{Prompt: []int{7}}, 4097), `"first"`, `"transfer_mode":"push","first"`, 1))
			}
			p := newPairOf(t, connector, source, nil)
			if end, sent := p.copied(4096, time.Second); end != chooser.Copied || !sent {
				t.Fatalf("the copy ended with %v, target asked %v", end, sent)
			}
			a, b := p.legs[0][0], p.legs[1][0]
			if len(a.Prompt) != 4097 || !slices.Equal(a.Prompt, b.Prompt) || a.Prompt[0] != 7 || a.Max != 1 || b.Max != 1 || a.Stream || b.Stream {
				t.Errorf("the legs are of %d and %d tokens, for %d and %d", len(a.Prompt), len(b.Prompt), a.Max, b.Max)
			}
			if !a.Params.Decode || b.Params.Decode || !b.Params.Prefill || b.Params.First != 7 {
				t.Errorf("the parameters are %+v and %+v", a.Params, b.Params)
			}
			if pushes := connector == "nixl-push"; a.id == "" || (a.id == b.id) != pushes || !strings.HasPrefix(a.id, "decision-1-c1") {
				t.Errorf("the legs have the ids %q and %q", a.id, b.id)
			}
			if got := p.counted("kvpilot.router.copies"); got != "1 missing" { // the source had nothing in its cache
				t.Errorf("counted %s", got)
			}
			p.end()
		})
	}
}

func TestCopyThatFailsIsCountedAndEndsOnce(t *testing.T) {
	held := strings.Replace(prefilled(&leg{Prompt: []int{7}}, 4097), `"cached_tokens":0`, `"cached_tokens":4096`, 1)
	working := text(200, held)
	for _, tt := range []struct {
		name             string
		source, target   http.HandlerFunc
		tokens           int
		result           string
		end              chooser.CopyEnd
		asked, shortTime bool
	}{
		{name: "works", source: working, tokens: 4096, result: "done", end: chooser.Copied, asked: true},
		{name: "the source refuses", source: text(400, `{}`), tokens: 4096, result: "source", end: chooser.SourceFailed},
		{name: "the source is full", source: text(503, `{}`), tokens: 4096, result: "source", end: chooser.SourceFailed},
		{name: "the source breaks off", source: cut, tokens: 4096, result: "source", end: chooser.SourceFailed},
		{name: "the source hangs", source: silent, tokens: 4096, result: "late", end: chooser.SourceFailed, shortTime: true},
		{name: "no cache is passed on", source: text(200, `{"usage":{"prompt_tokens":4097},"kv_transfer_params":null}`), tokens: 4096, result: "no_cache", end: chooser.SourceFailed},
		{name: "the source counts other tokens", source: text(200, prefilled(&leg{Prompt: []int{7}}, 4096)), tokens: 4096, result: "mismatch", end: chooser.SourceFailed},
		{name: "another connector than the label says", source: text(200, strings.Replace(held, `"first"`, `"transfer_mode":"push","first"`, 1)), tokens: 4096, result: "no_cache", end: chooser.SourceFailed},
		{name: "the target refuses", source: working, target: text(400, `{}`), tokens: 4096, result: "target", end: chooser.TargetFailed, asked: true},
		{name: "the target cannot read", source: working, target: text(500, `{"error":{"message":"KV load failed"}}`), tokens: 4096, result: "target", end: chooser.TargetFailed, asked: true},
		{name: "the target hangs", source: working, target: silent, tokens: 4096, result: "late", end: chooser.TargetFailed, asked: true, shortTime: true},
		{name: "the prompt is no longer than the prefix", source: working, tokens: longPrompt, result: "source", end: chooser.CopyGivenUp},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, tt.source, tt.target)
			if tt.shortTime {
				p.router.SetCopyPatience(100 * time.Millisecond)
			}
			end, sent := p.copied(tt.tokens, time.Millisecond)
			if end != tt.end || sent != tt.asked {
				t.Errorf("it ended with %v, the target was asked: %v", end, sent)
			}
			if got := p.counted("kvpilot.router.copies"); got != "1 "+tt.result {
				t.Errorf("counted %s, want %s", got, tt.result)
			}
			if parts := p.parts(); tt.tokens < longPrompt && strings.Contains(parts, "decode") != tt.asked {
				t.Errorf("the engines were asked for %q", parts)
			}
			p.end()
		})
	}
}

func TestCopyEndsWhenAReplicaIsGone(t *testing.T) {
	p := newPair(t, silent, nil)
	go func() {
		time.Sleep(200 * time.Millisecond)
		p.engines[0].srv.CloseClientConnections()
		p.engines[0].srv.Close()
	}()
	if end, _ := p.copied(4096, time.Minute); end != chooser.SourceFailed {
		t.Errorf("it ended with %v", end)
	}
	if got := p.counted("kvpilot.router.copies"); got != "1 late" && got != "1 source" {
		t.Errorf("counted %s", got)
	}
	p.end()
}
