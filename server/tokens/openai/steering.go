package openai

import (
	"strings"

	"github.com/kvpilot/kvpilot/server/tokens/rawjson"
)

// Steering is a set of the members of a body by which it steers an engine's KV connectors: where the engine fetches
// blocks from, whom it hands them to, and the id by which some connectors find the other side.
type Steering uint8

// The members.
const (
	// SteersKV is kv_transfer_params.
	SteersKV Steering = 1 << iota
	// SteersEC is ec_transfer_params, the same for encoder caches.
	SteersEC
	// SteersID is a request_id with a connector's addresses in it.
	SteersID
)

// The names that engines read. Members are found in the body's object and, because vLLM merges them into the same
// arguments, inside the members of carriers.
const (
	nameKV  = "kv_transfer_params"
	nameEC  = "ec_transfer_params"
	nameID  = "request_id"
	nameIDs = "prompt_token_ids"

	// longestSteering bounds the names: of their letters k and s, others that fold to them have up to two bytes more.
	longestSteering = len(nameKV) + 4
)

// Steerings lists the members.
func Steerings() []Steering { return []Steering{SteersKV, SteersEC, SteersID} }

// Names lists the members of the set.
func (s Steering) Names() []string {
	var list []string
	for _, one := range [...]struct {
		is   Steering
		name string
	}{{SteersKV, nameKV}, {SteersEC, nameEC}, {SteersID, nameID}} {
		if s&one.is != 0 {
			list = append(list, one.name)
		}
	}
	return list
}

// steeringOf is the kind of a member by its name. Readers that do not distinguish upper and lower case exist, so the
// comparison does not either.
func steeringOf(name string) Steering {
	switch {
	case len(name) < len(nameID) || len(name) > longestSteering:
		return 0
	case strings.EqualFold(name, nameKV):
		return SteersKV
	case strings.EqualFold(name, nameEC):
		return SteersEC
	case strings.EqualFold(name, nameID):
		return SteersID
	}
	return 0
}

// carries reports whether an engine merges the content of a member into its arguments: vllm_xargs, and extra_args in the
// sampling_params of /inference/v1/generate. Clients flatten extra_body; where one does not, it is read in the same way.
func carries(name string) bool {
	switch len(name) {
	case len("vllm_xargs"): // and extra_args, extra_body
		return strings.EqualFold(name, "vllm_xargs") || strings.EqualFold(name, "extra_args") || strings.EqualFold(name, "extra_body")
	case len("vllm_xargs") + 1, len("vllm_xargs") + 2: // with a letter that folds to s
		return strings.EqualFold(name, "vllm_xargs") || strings.EqualFold(name, "extra_args")
	}
	return len(name) >= len("sampling_params") && len(name) <= len("sampling_params")+2 && strings.EqualFold(name, "sampling_params")
}

// MarksAddress reports whether a request's id holds the addresses of a prefill or decode engine, as some connectors
// (MoRI-IO, P2pNccl) read it from there.
func MarksAddress(id string) bool {
	if len(id) < len("decode_addr_") || !strings.Contains(id, "_") {
		return false
	}
	id = strings.ToLower(id)
	return strings.Contains(id, "prefill_addr_") || strings.Contains(id, "decode_addr_")
}

// WithoutSteering returns the body without the members that steer engines, and which these were. A chat's and a message's
// kv_transfer_params keep the prompt's token ids, which say nothing but the prompt. All other bytes are as the client
// sent them; without such members the body itself is returned.
func (r *Request) WithoutSteering() ([]byte, Steering) {
	if r.Truncated || r.end == 0 || !r.maySteer() {
		return r.Body, 0
	}
	c := cutter{body: r.Body}
	ids := -1 // the member whose token ids stay: the last one, which counts
	if r.Route == RouteChat || r.Route == RouteMessages || r.Route == RouteAny {
		ids = r.lastMember(nameKV)
	}
	var o objectCuts
	for i, m := range r.members {
		if i == ids {
			o.next(&c, m, c.trim(m))
			continue
		}
		o.next(&c, m, c.check(m, steeringOf(m.name), carries(m.name), 0))
	}
	o.close(&c)
	if c.found == 0 {
		return r.Body, 0
	}
	return apply(r.Body, c.splices), c.found
}

// maySteer reports whether one of the names is in the body's object.
func (r *Request) maySteer() bool {
	for i := range r.members {
		if name := r.members[i].name; steeringOf(name) != 0 || carries(name) {
			return true
		}
	}
	return false
}

// maxCarriers bounds how deep carriers are in each other: engines merge sampling_params.extra_args and no deeper ones.
const maxCarriers = 3

// cutter collects the parts cut out of a body.
type cutter struct {
	body    []byte
	splices []splice
	found   Steering
}

// objectCuts are the cuts in one object, whose members come in order. Each takes the comma that joined the member.
type objectCuts struct {
	kept, before int
	// open is where a cut begins that ends at the next member, from 1; 0 for none.
	open int
}

// next takes a member.
func (o *objectCuts) next(c *cutter, m member, stays bool) {
	if o.open > 0 {
		c.cut(o.open-1, m.key, nil)
		o.open = 0
	}
	switch {
	case stays:
		o.kept++
	case o.kept > 0: // with everything since the member before it: ", name: value"
		c.cut(o.before, m.valueEnd, nil)
	default: // with everything up to the member after it
		o.open = m.key + 1
	}
	o.before = m.valueEnd
}

// close ends the object.
func (o *objectCuts) close(c *cutter) {
	if o.open > 0 {
		c.cut(o.open-1, o.before, nil)
	}
}

// cut notes one replacement. Neighbours become one.
func (c *cutter) cut(from, to int, with []byte) {
	if n := len(c.splices); n > 0 && c.splices[n-1].to == from && with == nil && c.splices[n-1].with == nil {
		c.splices[n-1].to = to
		return
	}
	c.splices = append(c.splices, splice{from, to, with})
}

// check decides whether a member stays, and looks into carriers.
func (c *cutter) check(m member, kind Steering, carrier bool, depth int) (stays bool) {
	value := c.body[m.start:m.valueEnd]
	switch {
	case kind == SteersID && !marked(value), kind != 0 && string(value) == "null":
		return true
	case kind != 0:
		c.found |= kind
		return false
	case value[0] == '{' && depth < maxCarriers && carrier:
		c.inside(m, depth+1)
	}
	return true
}

// inside cuts members out of the object that is a member's value.
func (c *cutter) inside(m member, depth int) {
	var o objectCuts
	s := rawjson.Scanner{Data: c.body[:m.valueEnd], Pos: m.start}
	s.Members(func(name []byte, key int) bool {
		inner := member{key: key, start: s.Pos}
		kind, carrier := Steering(0), false
		if len(name) <= longestSteering {
			kind, carrier = steeringOf(string(name)), carries(string(name))
		}
		if !s.Skip() {
			return false
		}
		inner.valueEnd = s.Pos
		o.next(c, inner, c.check(inner, kind, carrier, depth))
		return true
	})
	o.close(c)
}

// trim leaves of a kv_transfer_params only the prompt's token ids, and reports whether the member stays.
func (c *cutter) trim(m member) (stays bool) {
	value := c.body[m.start:m.valueEnd]
	if string(value) == "null" {
		return true
	}
	ids, alone := idsIn(value)
	switch {
	case ids == nil:
		c.found |= SteersKV
		return false
	case !alone:
		c.found |= SteersKV
		with := append(append([]byte(`{"`+nameIDs+`":`), ids...), '}')
		c.cut(m.start, m.valueEnd, with)
	}
	return true
}

// idsIn returns the list of token ids in the value of kv_transfer_params, nil without one. alone: nothing else is there.
func idsIn(value []byte) (ids []byte, alone bool) {
	if value[0] != '{' {
		return nil, false
	}
	count := 0
	s := rawjson.Scanner{Data: value}
	s.Members(func(name []byte, _ int) bool {
		from := s.Pos
		if !s.Skip() {
			return false
		}
		count++
		if string(name) == nameIDs {
			ids = value[from:s.Pos]
		}
		return true
	})
	if len(ids) == 0 || ids[0] != '[' {
		return nil, false
	}
	list := rawjson.Scanner{Data: ids}
	if _, ok := list.IDs(len(ids)); !ok || list.Pos != len(ids) {
		return nil, false
	}
	return ids, count == 1
}

// marked reports whether a raw value is a string with a connector's addresses in it.
func marked(value []byte) bool {
	return value[0] == '"' && MarksAddress(rawjson.TextOf(value).Copied())
}
