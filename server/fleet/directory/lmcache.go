package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// lmcache is the language of the coordinator of LMCache's servers (0.5.6). POST /directory/lookup hashes the token ids in chunks, and answers with the
// placements of each chunk, for each of the world's ranks. A placement is on an instance, a server that engines of a host share, in its memory (l1) or
// below it (l2), or in a pool that all instances share.
type lmcache struct{ chunk, world int }

// maxLookupIDs is the most token ids that the coordinator takes.
const maxLookupIDs = 1_000_000

// question implements protocol. Of prompts for LoRA adapters the coordinator has no name.
func (p *lmcache) question(q *Query, model string, _ int) (path string, body []byte, ok bool) {
	if q.Adapter != "" || len(q.IDs) < p.chunk || len(q.IDs) > maxLookupIDs {
		return "", nil, false
	}
	body = make([]byte, 0, 7*len(q.IDs)+len(model)+len(q.Salt)+128)
	body = append(body, `{"model_name":`...)
	body = appendString(body, model)
	body = append(body, `,"world_size":`...)
	body = strconv.AppendInt(body, int64(p.world), 10)
	body = append(body, `,"cache_salt":`...)
	body = appendString(body, q.Salt)
	body = appendIDs(append(body, ','), q.IDs)
	return "/directory/lookup", append(body, '}'), true
}

// appendString appends a JSON string.
func appendString(to []byte, s string) []byte {
	text, _ := json.Marshal(s) // of a string it cannot fail
	return append(to, text...)
}

// appendIDs appends a member with token ids.
func appendIDs(to []byte, ids []uint32) []byte {
	to = append(to, `"token_ids":[`...)
	for i, id := range ids {
		if i > 0 {
			to = append(to, ',')
		}
		to = strconv.AppendUint(to, uint64(id), 10)
	}
	return append(to, ']')
}

// placed is one key of an answer: the part of a chunk that one rank of an engine stores.
type placed struct {
	Key struct {
		Chunk string `json:"chunk_hash_hex"`
		Group int    `json:"object_group_id"`
	} `json:"key"`
	Placements []struct {
		Instance string `json:"instance_id"`
		Tier     string `json:"tier"`
		Shared   bool   `json:"shared"`
	} `json:"placements"`
}

// read implements protocol.
func (p *lmcache) read(answer io.Reader, q *Query, late func() bool, to *instances) error {
	c := &chunks{of: p, most: len(q.IDs) / p.chunk, told: -1, to: to}
	for name := range to.byName {
		c.runs = append(c.runs, run{name: name})
	}
	dec := json.NewDecoder(answer)
	err := object(dec, func(name string) error {
		switch name {
		case "chunks":
			if err := dec.Decode(&c.told); err != nil {
				return err
			}
			if c.told != c.most {
				return fmt.Errorf("%w: %d chunks of a prompt of %d tokens, with chunks of %d it has %d", errWrong, c.told, len(q.IDs), p.chunk, c.most)
			}
			return nil
		case "results":
			return c.read(dec, late)
		}
		var other json.RawMessage
		return dec.Decode(&other)
	})
	switch {
	case errors.Is(err, errEnough):
	case err != nil:
		return asWrong(err)
	case c.told < 0 || !c.over || c.done != c.most:
		return fmt.Errorf("%w: %d of %d chunks", errWrong, c.done, c.most)
	}
	for _, r := range c.runs {
		to.hold(r.name, -1, Held{Host: r.host * p.chunk, Store: r.store * p.chunk})
	}
	return nil
}

// asWrong makes the error of an answer that is no JSON, or other JSON than expected, the answer's own. An answer that breaks off, or comes late, is not.
func asWrong(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return fmt.Errorf("%w: %w", errWrong, err)
	}
	return err
}

// object reads an object and has each member's value read.
func object(dec *json.Decoder, member func(name string) error) error {
	if err := expect(dec, json.Delim('{')); err != nil {
		return err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		text, _ := name.(string) // names of members are strings
		if err := member(text); err != nil {
			return err
		}
	}
	return expect(dec, json.Delim('}'))
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%w: %v in place of %v", errWrong, got, want)
	}
	return err
}

// errEnough ends the reading of an answer with nothing more to learn from.
var errEnough = errors.New("no instance holds more")

// run is the part of a prompt that an instance holds without a gap.
type run struct {
	name        string
	host, store int // whole chunks
	// own and reach count the current chunk's keys that are in the instance's memory, and within its reach.
	own, reach int
	broken     bool
}

// chunks follows the chunks of an answer in their order.
type chunks struct {
	of   *lmcache
	most int // of the prompt
	told int // by the answer; below zero: not yet
	done int
	over bool // the list has ended
	keys int  // of the current chunk
	at   string
	runs []run
	to   *instances
}

// read reads the list of keys: of each chunk one for each rank, and keys of other object groups, which do not count.
func (c *chunks) read(dec *json.Decoder, late func() bool) error {
	if err := expect(dec, json.Delim('[')); err != nil {
		return err
	}
	for dec.More() {
		if late() {
			return errLate
		}
		var key placed
		if err := dec.Decode(&key); err != nil {
			return err
		}
		if err := c.add(&key); err != nil {
			return err
		}
	}
	if err := expect(dec, json.Delim(']')); err != nil {
		return err
	}
	c.over = true
	if c.keys != 0 {
		return fmt.Errorf("%w: the last chunk has %d keys in place of %d", errWrong, c.keys, c.of.world)
	}
	return nil
}

// add counts a key.
func (c *chunks) add(key *placed) error {
	switch {
	case key.Key.Chunk == "":
		return fmt.Errorf("%w: a key without a chunk", errWrong)
	case key.Key.Group != 0:
		return nil
	case c.keys > 0 && key.Key.Chunk != c.at:
		return fmt.Errorf("%w: chunk %d has %d keys in place of %d", errWrong, c.done, c.keys, c.of.world)
	}
	c.at, c.keys = key.Key.Chunk, c.keys+1
	for i := range c.runs {
		r := &c.runs[i]
		own, reach := false, false
		for _, at := range key.Placements {
			mine := at.Instance == r.name && !at.Shared
			own = own || mine && at.Tier == "l1"
			reach = reach || mine || at.Shared
		}
		if own {
			r.own++
		}
		if reach {
			r.reach++
		}
	}
	if c.keys == c.of.world {
		return c.close()
	}
	return nil
}

// close ends the current chunk. It returns errEnough when no instance holds it.
func (c *chunks) close() error {
	if c.done++; c.done > c.most {
		return fmt.Errorf("%w: more than %d chunks", errWrong, c.most)
	}
	left := false
	for i := range c.runs {
		r := &c.runs[i]
		if r.broken = r.broken || r.reach < c.keys; !r.broken {
			if left = true; r.own == c.keys && r.host == r.store {
				r.host++
			}
			r.store++
		}
		r.own, r.reach = 0, 0
	}
	c.keys = 0
	if !left && c.told >= 0 {
		return errEnough
	}
	return nil
}
