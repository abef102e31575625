package vllm_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvpilot/kvpilot/server/domain/kvblock"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllm"
	"github.com/kvpilot/kvpilot/server/fleet/kvevents/vllmtest"
)

const goldenFile = "../../../../../shared/testdata/vllm-events/kv_events.json"

type golden struct {
	Name    string
	Case    string
	Version string `json:"-"`
	Hex     string
	Batch   struct {
		TS     float64 `json:"ts"`
		Rank   *int    `json:"data_parallel_rank"`
		Events []struct {
			Type        string
			BlockHashes []string `json:"block_hashes"`
			Parent      *string  `json:"parent_block_hash"`
			TokenIDs    []uint32 `json:"token_ids"`
			BlockSize   int      `json:"block_size"`
			LoraID      *int64   `json:"lora_id"`
			Medium      *string
			LoraName    *string `json:"lora_name"`
			ExtraKeys   []any   `json:"extra_keys"`
			Group       *int    `json:"group_idx"`
			Kind        *string `json:"kv_cache_spec_kind"`
		}
	}
}

func goldens(t *testing.T) []golden {
	t.Helper()
	raw, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Skipf("vLLM's own bytes are not at hand: %v", err)
	}
	var file struct{ Vectors []golden }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 35 {
		t.Fatalf("%d vectors, want at least 35", len(file.Vectors))
	}
	for i := range file.Vectors {
		v := &file.Vectors[i]
		_, v.Version, _ = strings.Cut(v.Name, "@")
	}
	return file.Vectors
}

// number turns the vectors' notation of a hash into the router's form.
func number(t *testing.T, s string) kvblock.EngineHash {
	t.Helper()
	if raw, ok := strings.CutPrefix(s, "0x"); ok {
		s = raw[len(raw)-16:]
		n, _ := new(big.Int).SetString(s, 16)
		return kvblock.EngineHash(n.Uint64())
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		t.Fatalf("hash %q", s)
	}
	if n.Sign() < 0 {
		return kvblock.EngineHash(n.Int64())
	}
	return kvblock.EngineHash(n.Uint64())
}

func TestDecodesWhatVLLMSent(t *testing.T) {
	var d vllm.Decoder
	for _, v := range goldens(t) {
		t.Run(v.Name, func(t *testing.T) {
			raw, err := hex.DecodeString(v.Hex)
			if err != nil {
				t.Fatal(err)
			}
			b, err := d.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			rank := -1
			if v.Batch.Rank != nil {
				rank = *v.Batch.Rank
			}
			if v.Case == "stored_negative_int64" { // one hash for two blocks' tokens
				if b.Misfits != 1 || b.PrefixMisfits != 1 || len(b.Events) != 0 {
					t.Errorf("batch = %+v, want one misfit", b)
				}
				return
			}
			if b.Time != v.Batch.TS || b.Rank != rank || len(b.Events) != len(v.Batch.Events) {
				t.Fatalf("batch ts %v rank %d with %d events, want %v, %d, %d", b.Time, b.Rank, len(b.Events), v.Batch.TS, rank, len(v.Batch.Events))
			}
			if b.UnknownTags+b.UnknownFields+b.Misfits != 0 {
				t.Errorf("skipped something: %+v", b)
			}
			for i := range b.Events {
				checkGolden(t, v, &b.Events[i], i)
			}
		})
	}
}

func checkGolden(t *testing.T, v golden, got *vllm.Event, i int) {
	t.Helper()
	want := v.Batch.Events[i]
	var hashes []kvblock.EngineHash
	for _, h := range want.BlockHashes {
		hashes = append(hashes, number(t, h))
	}
	tier := kvblock.TierGPU
	if want.Medium != nil && *want.Medium == "CPU" {
		tier = kvblock.TierCPU
	}
	group := kvblock.NoGroup
	if want.Group != nil {
		group = *want.Group
	}
	switch want.Type {
	case "AllBlocksCleared":
		if got.Op != vllm.OpCleared || got.Tier != kvblock.TierGPU {
			t.Errorf("event = %+v, want cleared", got)
		}
	case "BlockRemoved":
		r := got.Removed
		if got.Op != vllm.OpRemoved || !slices.Equal(r.Hashes, hashes) || r.Tier != tier || r.Group != group || r.Remote {
			t.Errorf("event = %+v, want removed %x", got, hashes)
		}
	case "BlockStored":
		s := got.Stored
		if got.Op != vllm.OpStored || !slices.Equal(s.Hashes, hashes) || s.Tier != tier || s.Group != group || s.Remote {
			t.Errorf("event = %+v, want stored %x in %v", got, hashes, tier)
		}
		if !slices.Equal(s.Tokens, want.TokenIDs) || s.BlockSize != want.BlockSize || s.Window != 0 || s.Salt != "" || s.Ambiguous {
			t.Errorf("event = %+v, want tokens %d by %d", got, want.TokenIDs, want.BlockSize)
		}
		if s.HasParent != (want.Parent != nil) || want.Parent != nil && s.Parent != number(t, *want.Parent) {
			t.Errorf("parent = %v %x, want %v", s.HasParent, s.Parent, want.Parent)
		}
		if want.LoraID != nil && s.AdapterID != *want.LoraID || want.LoraName != nil && s.Adapter != *want.LoraName || want.LoraName == nil && s.Adapter != "" {
			t.Errorf("adapter = %d %q", s.AdapterID, s.Adapter)
		}
		if want.Kind != nil && s.Kind != kvblock.KindFull || want.Kind == nil && s.Kind != kvblock.KindUnknown {
			t.Errorf("kind = %d", s.Kind)
		}
		if v.Case == "stored_2blocks" && len(want.ExtraKeys) > 0 {
			item := kvblock.Item{ID: "img1", Offset: -3, HasOffset: true}
			if len(s.Items) != 2 || len(s.Items[0]) != 0 || len(s.Items[1]) != 1 || s.Items[1][0] != item {
				t.Errorf("items = %+v", s.Items)
			}
		} else if s.Items != nil {
			t.Errorf("items = %+v, want none", s.Items)
		}
	}
}

// TestEncoderIsVLLMs keeps the encoder of the other tests honest.
func TestEncoderIsVLLMs(t *testing.T) {
	layouts := map[string]vllmtest.Layout{}
	for _, l := range vllmtest.Layouts() {
		layouts[l.Name] = l
	}
	for _, v := range goldens(t) {
		layout, ok := layouts[v.Version[:strings.LastIndex(v.Version, ".")]]
		if !ok {
			t.Fatalf("no layout for %s", v.Version)
		}
		var events []vllmtest.Event
		for _, e := range v.Batch.Events {
			event := vllmtest.Event{"type": e.Type, "block_size": e.BlockSize}
			if e.Type == "BlockStored" {
				event["token_ids"] = e.TokenIDs
			}
			hashes := []any{}
			for _, h := range e.BlockHashes {
				hashes = append(hashes, wireHash(t, h))
			}
			event["block_hashes"] = hashes
			if e.Parent != nil {
				event["parent_block_hash"] = wireHash(t, *e.Parent)
			}
			if e.LoraID != nil {
				event["lora_id"] = *e.LoraID
			}
			for name, s := range map[string]*string{"medium": e.Medium, "lora_name": e.LoraName, "kv_cache_spec_kind": e.Kind} {
				if s != nil {
					event[name] = *s
				}
			}
			if e.Group != nil {
				event["group_idx"] = *e.Group
			}
			if e.ExtraKeys != nil {
				event["extra_keys"] = integers(e.ExtraKeys)
			}
			events = append(events, event)
		}
		var rank any
		if v.Batch.Rank != nil {
			rank = *v.Batch.Rank
		}
		want, _ := hex.DecodeString(v.Hex)
		if got := layout.Batch(v.Batch.TS, rank, events...); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", v.Name, got, want)
		}
	}
}

func wireHash(t *testing.T, s string) any {
	t.Helper()
	if raw, ok := strings.CutPrefix(s, "0x"); ok {
		b, _ := hex.DecodeString(raw)
		return b
	}
	if n, _ := new(big.Int).SetString(s, 10); n.Sign() < 0 {
		return n.Int64()
	}
	return uint64(number(t, s))
}

// integers turns JSON's numbers back into integers.
func integers(list []any) []any {
	out := make([]any, len(list))
	for i, v := range list {
		switch v := v.(type) {
		case float64:
			out[i] = int64(v)
		case []any:
			out[i] = integers(v)
		default:
			out[i] = v
		}
	}
	return out
}

// TestByteHashesAreTheIntegersOfTheOtherSetting: an engine may send a digest or its integer form, and both
// must name the same block.
func TestByteHashesAreTheIntegersOfTheOtherSetting(t *testing.T) {
	raw, err := os.ReadFile("../../../../../shared/testdata/vllm-events/block_hash.json")
	if err != nil {
		t.Skipf("vLLM's own hashes are not at hand: %v", err)
	}
	var file struct {
		Algorithms map[string]struct {
			Chain []struct {
				Hash        string
				ExternalU64 string `json:"external_u64"`
			}
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, algorithm := range file.Algorithms {
		for _, block := range algorithm.Chain {
			digest, err := hex.DecodeString(block.Hash)
			if err != nil {
				t.Fatal(err)
			}
			e := one(t, vllmtest.Newest(), vllmtest.Removed().With("block_hashes", []any{digest}))
			if got, want := e.Removed.Hashes[0], number(t, block.ExternalU64); got != want {
				t.Errorf("%s: %x gives %d, want %d", name, digest, got, want)
			}
			checked++
		}
	}
	if checked < 12 {
		t.Errorf("%d hashes checked, want 12", checked)
	}
}
