package directory

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// conductor is the language of Mooncake's conductor. POST /query answers, for each instance, with the tokens of the prompt's beginning that it has on
// its GPUs, that host memory continues, and that disks continue: gpu ≤ cpu ≤ disk. Newer versions answer for each data-parallel rank, too. The
// instances are in the member "instances"; in older versions they are in one with the tenant's name, and the members are in capitals.
type conductor struct{ tenant string }

// question implements protocol.
func (p *conductor) question(q *Query, model string, blockSize int) (path string, body []byte, ok bool) {
	if blockSize <= 0 || len(q.IDs) < blockSize {
		return "", nil, false
	}
	body = make([]byte, 0, 7*len(q.IDs)+len(model)+len(q.Salt)+len(q.Adapter)+128)
	body = append(body, `{"model":`...)
	body = appendString(body, model)
	body = append(body, `,"block_size":`...)
	body = strconv.AppendInt(body, int64(blockSize), 10)
	body = append(body, `,"tenant_id":`...)
	body = appendString(body, p.tenant)
	if q.Adapter != "" {
		body = appendString(append(body, `,"lora_name":`...), q.Adapter)
	}
	if q.Salt != "" {
		body = appendString(append(body, `,"cache_salt":`...), q.Salt)
	}
	body = appendIDs(append(body, ','), q.IDs)
	return "/query", append(body, '}'), true
}

// matched is the part of a prompt that an instance or a rank has, in tokens. Names are compared without regard to case.
type matched struct {
	GPU  int  `json:"gpu"`
	CPU  *int `json:"cpu"`
	Disk *int `json:"disk"`
}

// instance is one instance of an answer.
type instance struct {
	matched
	Ranks map[string]matched `json:"rank_matches"`
}

// maxInstances bounds the bytes of a conductor's answer.
const maxInstances = 4 << 20

// read implements protocol.
func (p *conductor) read(answer io.Reader, q *Query, _ func() bool, to *instances) error {
	text, err := io.ReadAll(io.LimitReader(answer, maxInstances))
	if err != nil {
		return err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		return fmt.Errorf("%w: %w", errWrong, err)
	}
	list, ok := top["instances"]
	if !ok {
		if list, ok = top[p.tenant]; !ok && len(top) == 0 {
			return nil // an older version without an instance of the tenant
		}
	}
	var found map[string]instance
	if err := json.Unmarshal(list, &found); err != nil {
		return fmt.Errorf("%w: %w", errWrong, err)
	}
	most := len(q.IDs)
	for name := range to.byName {
		one, ok := found[name]
		if !ok {
			continue
		}
		if len(one.Ranks) == 0 {
			if err := one.hold(to, name, -1, most); err != nil {
				return err
			}
			continue
		}
		for index, part := range one.Ranks {
			rank, err := strconv.Atoi(index)
			if err != nil || rank < 0 {
				return fmt.Errorf("%w: %q is no rank", errWrong, index)
			}
			if err := part.hold(to, name, rank, most); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold notes the part of a rank.
func (m *matched) hold(to *instances, name string, rank, most int) error {
	if m.CPU == nil && m.Disk == nil {
		return fmt.Errorf("%w: instance %q has neither cpu nor disk", errWrong, name)
	}
	part := Held{From: m.GPU}
	if m.CPU != nil {
		part.Host = *m.CPU
	}
	if m.Disk != nil {
		part.Store = *m.Disk
	}
	if least, longest := min(part.From, part.Host, part.Store), max(part.From, part.Host, part.Store); least < 0 || longest > most {
		return fmt.Errorf("%w: from %d to %d tokens of a prompt of %d", errWrong, least, longest, most)
	}
	to.hold(name, rank, part)
	return nil
}
