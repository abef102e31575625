package enginesim_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvpilot/kvpilot/server/wire/zmtp"
	"github.com/kvpilot/kvpilot/sim/enginesim"
)

// replayed asks for all batches from seq on and gives them decoded.
func (r *replica) replayed(t *testing.T, from uint64) (seqs []uint64, batches [][]any) {
	t.Helper()
	conn, err := zmtp.Dial(t.Context(), r.replay, zmtp.Params{Type: zmtp.DEALER})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		t.Fatal(err)
	}
	var m zmtp.Message
	for {
		if err := conn.Recv(&m); err != nil {
			t.Fatal(err)
		}
		f := m.Frames
		seq := binary.BigEndian.Uint64(f[len(f)-2])
		if seq == zmtp.EndOfReplay {
			return seqs, batches
		}
		v, _, err := msgp.ReadIntfBytes(f[len(f)-1])
		if err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
		seqs, batches = append(seqs, seq), append(batches, v.([]any))
	}
}

func TestEventsSayWhatTheEngineHolds(t *testing.T) {
	for _, version := range []string{"0.9.2", "0.12.0", "0.18.0", "0.24.0", "0.27.0", "0.32.0"} {
		t.Run(version, func(t *testing.T) {
			cfg := fast()
			cfg.Version = version
			r := start(t, cfg)
			ids := make([]string, 40)
			for i := range ids {
				ids[i] = fmt.Sprint(2000 + i)
			}
			r.post(t, "/v1/completions", `{"model":"sim","max_tokens":1,"prompt":[`+strings.Join(ids, ",")+`]}`)
			eventually(t, "an event", func() bool { seqs, _ := r.replayed(t, 0); return len(seqs) > 0 })
			seqs, batches := r.replayed(t, 0)
			if seqs[0] != 0 {
				t.Errorf("the first number is %d, want 0", seqs[0])
			}
			event := batches[0][1].([]any)[0]
			var hashes, tokens []any
			var parent, size any
			if m, ok := event.(map[string]any); ok {
				if version < "0.24" {
					t.Errorf("%s writes maps", version)
				}
				hashes, tokens, parent, size = m["block_hashes"].([]any), m["token_ids"].([]any), m["parent_block_hash"], m["block_size"]
			} else {
				l := event.([]any)
				hashes, parent, tokens, size = l[1].([]any), l[2], l[3].([]any), l[4]
			}
			if len(hashes) != 2 || len(tokens) != 32 || parent != nil || fmt.Sprint(size) != "16" {
				t.Errorf("got %d hashes, %d tokens, parent %v, size %v; want 2, 32, nil, 16", len(hashes), len(tokens), parent, size)
			}
			if fmt.Sprint(tokens[0]) != "2000" || fmt.Sprint(tokens[31]) != "2031" {
				t.Errorf("tokens %v", tokens)
			}
		})
	}
}

func TestEvictionIsAnnounced(t *testing.T) {
	cfg := fast()
	cfg.Core.Blocks, cfg.Core.MaxModelLen = 17, 256
	r := start(t, cfg)
	for i := range 6 {
		r.post(t, "/v1/completions", fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":"%s"}`, strings.Repeat(fmt.Sprintf("w%d ", i), 60)))
	}
	stored, removed := map[string]int{}, 0
	held := func() int {
		n := 0
		for _, c := range stored {
			n += c
		}
		return n
	}
	_, batches := r.replayed(t, 0)
	for _, b := range batches {
		for _, e := range b[1].([]any) {
			m := e.(map[string]any)
			for _, h := range m["block_hashes"].([]any) {
				switch m["type"] {
				case "BlockStored":
					stored[fmt.Sprint(h)]++
				case "BlockRemoved":
					removed++
					stored[fmt.Sprint(h)]--
					if stored[fmt.Sprint(h)] < 0 {
						t.Errorf("block %v was removed more often than stored", h)
					}
				}
			}
		}
	}
	if removed == 0 || held() > 16 {
		t.Errorf("%d removals, %d blocks held; the rank has 16", removed, held())
	}
}

func TestRestartIsANewLife(t *testing.T) {
	r := start(t, fast())
	resp := r.send(t, t.Context(), "/v1/completions", `{"model":"sim","prompt":"x","stream":true,"max_tokens":4000,"ignore_eos":true}`)
	defer resp.Body.Close()
	r.Restart(0)
	eventually(t, "the second life", func() bool { return r.Lives() == 2 && r.Stats() != nil })
	buf := make([]byte, 1<<20)
	for {
		if _, err := resp.Body.Read(buf); err != nil {
			if err.Error() == "EOF" {
				t.Error("the stream of the first life ended properly")
			}
			break
		}
	}
	if seqs, _ := r.replayed(t, 0); len(seqs) != 0 {
		t.Errorf("the new life replays %d batches of the old one", len(seqs))
	}
	_, body := r.post(t, "/v1/completions", `{"model":"sim","prompt":"`+strings.Repeat("again ", 40)+`","max_tokens":1}`)
	if got := cachedOf(t, body); got != 0 {
		t.Errorf("cached %d right after a restart", got)
	}
}

func TestRanksHaveCachesOfTheirOwn(t *testing.T) {
	cfg := fast()
	cfg.Ranks = 2
	r := start(t, cfg)
	body := `{"model":"sim","max_tokens":1,"prompt":"` + strings.Repeat("rank ", 40) + `"}`
	_, first := r.post(t, "/v1/completions", body, "X-Data-Parallel-Rank", "1")
	_, other := r.post(t, "/v1/completions", body, "X-Data-Parallel-Rank", "0")
	_, again := r.post(t, "/v1/completions", body, "X-Data-Parallel-Rank", "1")
	if a, b, c := cachedOf(t, first), cachedOf(t, other), cachedOf(t, again); a != 0 || b != 0 || c == 0 {
		t.Errorf("cached %d, %d, %d; want 0, 0 and a hit", a, b, c)
	}
}

func TestSaltsAndAdaptersShareNothing(t *testing.T) {
	cfg := fast()
	cfg.Adapters = []string{"law"}
	r := start(t, cfg)
	prompt := `"max_tokens":1,"prompt":"` + strings.Repeat("salt ", 40) + `"`
	for _, c := range []struct {
		body string
		hit  bool
	}{
		{`{"model":"sim",` + prompt + `}`, false},
		{`{"model":"sim","cache_salt":"a",` + prompt + `}`, false},
		{`{"model":"law",` + prompt + `}`, false},
		{`{"model":"sim","cache_salt":"a",` + prompt + `}`, true},
		{`{"model":"law",` + prompt + `}`, true},
	} {
		_, body := r.post(t, "/v1/completions", c.body)
		if got := cachedOf(t, body) > 0; got != c.hit {
			t.Errorf("%.60s: hit %v, want %v", c.body, got, c.hit)
		}
	}
}

func TestEventFaults(t *testing.T) {
	r := start(t, fast())
	store := func(i int) {
		r.post(t, "/v1/completions", fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":"%s"}`, strings.Repeat(fmt.Sprintf("e%d ", i), 40)))
	}
	count := func() int { seqs, _ := r.replayed(t, 0); return len(seqs) }
	store(0)
	eventually(t, "the first batch", func() bool { return count() == 1 })
	r.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{StopEvents: true}})
	store(1)
	r.SetFaults(enginesim.Faults{EngineFaults: enginesim.EngineFaults{HoleEvents: 1}})
	store(2)
	eventually(t, "the engine to be idle", func() bool { return r.Stats()[0].Running == 0 })
	r.SetFaults(enginesim.Faults{})
	store(3)
	eventually(t, "the last batch", func() bool { return count() == 2 })
	if seqs, _ := r.replayed(t, 0); seqs[1] != 2 {
		t.Errorf("numbers %v, want a hole at 1", seqs)
	}
}

func TestWrongSettingsAreRefused(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := fast()
	if _, err := enginesim.New(cfg, enginesim.Params{HTTP: ln, Events: []net.Listener{ln, ln}}); err == nil {
		t.Error("two event listeners for one rank are accepted")
	}
	ln.Close()
	cfg.Version, cfg.Models = "x", nil
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "version") || !strings.Contains(err.Error(), "model name") {
		t.Errorf("Validate says %v, want both faults", err)
	}
}
