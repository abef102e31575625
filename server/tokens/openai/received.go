package openai

import "github.com/kvpilot/kvpilot/server/tokens/rawjson"

// MemberReceived holds, in a request that continues a stream which another router has begun, the events that the client has of it.
const MemberReceived = "kvpilot_received"

// TakeReceived takes that member out of the body: it returns the events, and the request as the client sent it first. It is false where there is none.
func (r *Request) TakeReceived() (events, body []byte, ok bool) {
	raw := r.Raw(MemberReceived)
	if len(raw) < len(`""`) || raw[0] != '"' {
		return nil, nil, false
	}
	return []byte(rawjson.TextOf(raw).Copied()), r.Edit(Edit{Name: MemberReceived}), true
}
