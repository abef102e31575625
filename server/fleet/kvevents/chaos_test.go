package kvevents_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/domain/replica"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
	"github.com/kvpilot/kvpilot/server/wire/zmtp"
)

// wire is a TCP proxy before an engine's socket that cuts and stalls what passes.
type wire struct {
	endpoint string

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
	quota int                   // guarded by mu; bytes until the next cut, negative: none
	delay time.Duration         // guarded by mu
}

func startWire(t *testing.T, target string) *wire {
	t.Helper()
	ln := listen(t, "tcp://127.0.0.1:0")
	w := &wire{endpoint: "tcp://" + ln.Addr().String(), conns: map[net.Conn]struct{}{}, quota: -1}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target[len("tcp://"):])
			if err != nil {
				client.Close()
				continue
			}
			w.mu.Lock()
			w.conns[client], w.conns[server] = struct{}{}, struct{}{}
			w.mu.Unlock()
			pumps.Go(func() { w.pump(client, server, true) })
			pumps.Go(func() { w.pump(server, client, false) })
		}
	})
	t.Cleanup(func() { ln.Close(); w.cut(); pumps.Wait() })
	return w
}

// pump copies from one side to the other; towards the client it obeys quota and delay.
func (w *wire) pump(to, from net.Conn, down bool) {
	defer func() {
		to.Close()
		from.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, to)
		delete(w.conns, from)
	}()
	buf := make([]byte, 2048)
	for {
		n, err := from.Read(buf)
		if down {
			w.mu.Lock()
			delay, ends := w.delay, w.quota >= 0 && n >= w.quota
			switch {
			case ends:
				n, w.quota = w.quota, -1
			case w.quota >= 0:
				w.quota -= n
			}
			w.mu.Unlock()
			time.Sleep(delay)
			if ends {
				to.Write(buf[:n])
				return
			}
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
	clear(w.conns)
}

func (w *wire) set(quota int, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quota, w.delay = quota, delay
}

// TestChaos mistreats one engine and its sockets and then asks for the truth.
func TestChaos(t *testing.T) {
	t.Parallel()
	rounds := 250
	if testing.Short() {
		rounds = 60
	}
	for _, tt := range []struct {
		name string
		lies bool // batches that nobody can ever read
		seed uint64
	}{{"faults of the wire", false, 1}, {"faults of the wire again", false, 2}, {"and of the engine", true, 3}, {"and of the engine again", true, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(tt.seed, 7))
			e := startEngine(t, zmtp.PublisherParams{Topic: "kv@x", ReplayTopic: tt.seed%2 == 0})
			events := startWire(t, e.live)
			replays := startWire(t, e.replays)
			p, sink := startPlane(t, quick())
			p.Add(slot, replica.Events{Endpoint: events.endpoint, Replay: replays.endpoint, Topic: "kv@x"}, "x/0")
			defer func() {
				if t.Failed() {
					s, _ := p.Status(slot)
					t.Logf("the engine is at %d, the feed: %s", e.pub.Next(), dump(s))
				}
			}()
			layouts := vllmtest.Layouts()
			for round := range rounds {
				if round == rounds/2 {
					surely(t, p, e, events, replays)
				}
				mistreat(dice, e, events, replays, tt.lies, layouts)
				time.Sleep(time.Duration(dice.IntN(6)) * time.Millisecond)
			}
			events.set(-1, 0)
			replays.set(-1, 0)
			eventually(t, "everything is read", func() bool {
				s, _ := p.Status(slot)
				return s.Connected && !s.Recovering && s.Next == e.pub.Next() && s.State != kvblock.FeedCold
			})
			checkLowerBound(t, sink.content(slot), e.held)
			if tt.lies {
				e.clear()
				e.publish(5, 1)
			}
			s := expect(t, p, sink, slot, e, kvblock.FeedExact)
			t.Logf("connects %d, gaps %d, replays %d, resets %d, restarts %d, decode errors %d", s.Connects, s.Gaps, s.Replays, s.Resets, s.Restarts, s.DecodeErrors)
			if s.Connects < 3 || s.Restarts == 0 || s.Replays == 0 {
				t.Errorf("little happened: %s", dump(s))
			}
		})
	}
}

// surely has the feed see a restart and a broken connection, however slow the machine is: what chance
// brings may pass before the feed has looked.
func surely(t *testing.T, p *kvevents.Plane, e *engine, events, replays *wire) {
	t.Helper()
	events.set(-1, 0)
	replays.set(-1, 0)
	status := func() kvevents.Status { s, _ := p.Status(slot); return s }
	reached := func() bool {
		s := status()
		return s.Connected && s.Known && !s.Recovering && s.Next == e.pub.Next()
	}
	e.publish(3, 0)
	eventually(t, "the engine is followed", reached)
	before := status()
	e.restart()
	e.publish(1, 0)
	eventually(t, "the restart is seen", func() bool { return reached() && status().Restarts > before.Restarts })
	connects := status().Connects
	events.cut()
	eventually(t, "the feed is back", func() bool { return reached() && status().Connects > connects })
}

func mistreat(dice *rand.Rand, e *engine, events, replays *wire, lies bool, layouts []vllmtest.Layout) {
	e.layout = layouts[dice.IntN(len(layouts))]
	switch n := dice.IntN(100); {
	case n < 60:
		e.publish(1+dice.IntN(6), dice.IntN(4))
	case n < 68:
		e.pub.Lose(e.change(1+dice.IntN(6), dice.IntN(4)))
	case n < 73:
		events.cut()
	case n < 78:
		events.set(dice.IntN(600), 0) // somewhere in a frame
	case n < 82:
		replays.set(dice.IntN(4000), 0)
	case n < 85:
		events.set(-1, time.Duration(dice.IntN(5))*time.Millisecond)
		replays.set(-1, time.Duration(dice.IntN(5))*time.Millisecond)
	case n < 88:
		e.pub.Disconnect()
	case n < 90:
		e.clear()
	case n < 92:
		e.restart()
	case n < 96:
		time.Sleep(time.Duration(dice.IntN(30)) * time.Millisecond)
	case lies && n < 98:
		e.change(0, 2)
		e.pub.Skip(1 + uint64(dice.IntN(3)))
	case lies:
		e.pub.Publish(append(e.change(2, 2)[:20], 0xc1))
	}
}

// replayServer answers replay requests as its script says.
func replayServer(t *testing.T, answer func(c *zmtp.Conn, from uint64)) (endpoint string) {
	t.Helper()
	ln := listen(t, "tcp://127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	t.Cleanup(func() { cancel(); served.Wait() })
	served.Go(func() {
		zmtp.Serve(ctx, ln, zmtp.Params{Type: zmtp.ROUTER}, func(_ context.Context, c *zmtp.Conn) {
			var m zmtp.Message
			for c.Recv(&m) == nil {
				answer(c, binary.BigEndian.Uint64(m.Frames[1]))
			}
		})
	})
	return "tcp://" + ln.Addr().String()
}

func TestReplaysThatMisbehave(t *testing.T) {
	t.Parallel()
	const batches = 50
	number := func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
	for _, tt := range []struct {
		name   string
		answer func(c *zmtp.Conn, all [][]byte, from uint64)
		exact  bool
	}{
		{"drops what its socket cannot take", func(c *zmtp.Conn, all [][]byte, from uint64) {
			for seq := from; seq < batches; seq++ {
				if seq-from < 7 || seq%3 == 0 {
					c.Send(nil, number(seq), all[seq])
				}
			}
			c.Send(nil, number(zmtp.EndOfReplay), nil)
		}, true},
		{"drops the end marker", func(c *zmtp.Conn, all [][]byte, from uint64) {
			for seq := from; seq < batches; seq++ {
				c.Send(nil, number(seq), all[seq])
			}
		}, true},
		{"hangs up in the middle", func(c *zmtp.Conn, all [][]byte, from uint64) {
			for seq := from; seq < min(from+20, batches); seq++ {
				c.Send(nil, number(seq), all[seq])
			}
			if from+20 >= batches {
				c.Send(nil, number(zmtp.EndOfReplay), nil)
			}
			c.Close()
		}, true},
		{"starts too early", func(c *zmtp.Conn, all [][]byte, _ uint64) {
			for seq := range uint64(batches) {
				c.Send(nil, number(seq), all[seq])
			}
			c.Send(nil, number(zmtp.EndOfReplay), nil)
		}, true},
		{"repeats itself", func(c *zmtp.Conn, all [][]byte, _ uint64) {
			for i := 0; c.Send(nil, number(uint64(i%batches)), all[i%batches]) == nil; i++ {
			}
		}, true},
		{"answers nothing", func(*zmtp.Conn, [][]byte, uint64) {}, false},
		{"answers nonsense", func(c *zmtp.Conn, _ [][]byte, _ uint64) { c.Send([]byte("what?")) }, false},
		{"is cut in a frame", func(c *zmtp.Conn, all [][]byte, from uint64) {
			wire := zmtp.AppendMessage(nil, nil, number(from), all[min(int(from), batches-1)])
			c.WriteEncoded(wire[:len(wire)/2])
			c.Close()
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, zmtp.PublisherParams{})
			var all [][]byte
			for range batches {
				all = append(all, e.change(3, 1))
				e.pub.Lose(all[len(all)-1])
			}
			p, sink := startPlane(t, quick())
			p.Add(slot, replica.Events{Endpoint: e.live, Replay: replayServer(t, func(c *zmtp.Conn, from uint64) { tt.answer(c, all, from) })}, "x/0")
			if tt.exact {
				expect(t, p, sink, slot, e, kvblock.FeedExact)
				return
			}
			eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
			e.publish(2, 0)
			eventually(t, "a lower bound", func() bool { return sink.state(slot) == kvblock.FeedDegraded && len(sink.content(slot)) == 2 })
			e.clear()
			e.publish(3, 0)
			eventually(t, "exact", func() bool { return sink.state(slot) == kvblock.FeedExact && len(sink.content(slot)) == 3 })
		})
	}
}

// TestAnEngineThatSeemedToHaveNoRing: a replay that holds nothing may have been asked of an engine that
// was just starting. The next connection must find out.
func TestAnEngineThatSeemedToHaveNoRing(t *testing.T) {
	t.Parallel()
	e := startEngine(t, zmtp.PublisherParams{})
	number := func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
	var mu sync.Mutex
	var ring [][]byte
	replays := replayServer(t, func(c *zmtp.Conn, from uint64) {
		mu.Lock()
		defer mu.Unlock()
		for seq := from; seq < uint64(len(ring)); seq++ {
			c.Send(nil, number(seq), ring[seq])
		}
		c.Send(nil, number(zmtp.EndOfReplay), nil)
	})
	p, sink := startPlane(t, quick())
	p.Add(slot, replica.Events{Endpoint: e.live, Replay: replays}, "x/0")
	eventually(t, "subscribed", func() bool { return e.pub.Subscriptions() == 1 })
	for range 12 {
		e.publish(2, 1)
	}
	expect(t, p, sink, slot, e, kvblock.FeedExact)
	e.pub.Lose(e.change(1, 0))
	e.publish(1, 0)
	eventually(t, "the gap is given up", func() bool {
		s, _ := p.Status(slot)
		return s.Known && s.Next == e.pub.Next() && s.State == kvblock.FeedDegraded
	})
	mu.Lock() // the new engine answers when it has published, and says nothing more on its own
	e.restart()
	for range 5 {
		ring = append(ring, e.change(2, 0))
		e.pub.Lose(ring[len(ring)-1])
	}
	mu.Unlock()
	expect(t, p, sink, slot, e, kvblock.FeedExact)
}

// TestForeignBytes: what is no ZMTP at all must neither hurt nor stop the attempts.
func TestForeignBytes(t *testing.T) {
	t.Parallel()
	ln := listen(t, "tcp://127.0.0.1:0")
	var served sync.WaitGroup
	served.Go(func() {
		var silent []net.Conn
		for i := 0; ; i++ {
			c, err := ln.Accept()
			if err != nil {
				for _, c := range silent {
					c.Close()
				}
				return
			}
			if i%2 == 0 {
				fmt.Fprintf(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n%64s", "this is no ZMTP")
			}
			silent = append(silent, c)
			served.Go(func() { io.Copy(io.Discard, c) })
		}
	})
	p, sink := startPlane(t, quick())
	p.Add(slot, replica.Events{Endpoint: "tcp://" + ln.Addr().String()}, "x/0")
	eventually(t, "an error", func() bool { s, _ := p.Status(slot); return s.LastError != "" })
	eventually(t, "cold", func() bool { return sink.state(slot) == kvblock.FeedCold })
	ln.Close()
	served.Wait()
	e := startEngine(t, zmtp.PublisherParams{})
	e.kill()
	e.live = "tcp://" + ln.Addr().String()
	e.start()
	e.publish(1, 0)
	eventually(t, "connected", func() bool { s, _ := p.Status(slot); return s.Connected })
}
