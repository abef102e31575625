package openai

import "github.com/kvpilot/kvpilot/server/tokens/rawjson"

// cutMessage makes a whole message of the raw beginning of one that the end of the body cut off: the beginning of its content,
// and the other members that are complete. It is nil when there is no content.
func cutMessage(raw []byte) []byte {
	out, names := closeObject(raw, func(name string, value []byte) []byte {
		if name != "content" {
			return nil
		}
		return closeContent(value)
	})
	if !names["content"] {
		return nil
	}
	return out
}

// closeContent ends a content, a string or a list of parts, that was cut off; nil when nothing is there.
func closeContent(value []byte) []byte {
	if len(value) == 0 {
		return nil
	}
	switch value[0] {
	case '"':
		return closeString(value)
	case '[':
		return closeArray(value, closePart)
	}
	return nil
}

// closePart ends a content part that was cut off in its text or its own content. Of any other part half is
// worse than nothing.
func closePart(value []byte) []byte {
	out, names := closeObject(value, func(name string, value []byte) []byte {
		switch name {
		case "text":
			return closeString(value)
		case "content":
			return closeContent(value)
		}
		return nil
	})
	if !names["text"] && !names["content"] {
		return nil
	}
	return out
}

// closeString ends a string that was cut off.
func closeString(value []byte) []byte {
	if len(value) == 0 || value[0] != '"' {
		return nil
	}
	s := rawjson.Scanner{Data: value}
	t, _ := s.Text()
	if !t.Open {
		return nil
	}
	return append(append([]byte{'"'}, t.Raw...), '"')
}

// closeObject ends an object that was cut off: open makes a value of the member in which the cut is, or nil.
// It returns the names of the members that are there, too.
func closeObject(raw []byte, open func(name string, value []byte) []byte) ([]byte, map[string]bool) {
	names := map[string]bool{}
	s := rawjson.Scanner{Data: raw}
	if s.Space() != '{' {
		return nil, names
	}
	end, last := s.Pos+1, []byte(nil)
	s.Members(func(name []byte, keyStart int) bool {
		start, key := s.Pos, string(name)
		if s.Skip() && whole(raw, s.Pos) {
			end, names[key] = s.Pos, true
			return true
		}
		if value := open(key, raw[start:]); value != nil {
			last, names[key] = append(append(last, raw[keyStart:start]...), value...), true
		}
		return false
	})
	return closed(raw[:end], len(names), last, '}'), names
}

// closeArray ends an array that was cut off; open makes a value of the element in which the cut is, or nil.
func closeArray(raw []byte, open func(value []byte) []byte) []byte {
	s := rawjson.Scanner{Data: raw}
	end, n, last := 1, 0, []byte(nil)
	s.Elements(func(int) bool {
		start := s.Pos
		if s.Skip() && whole(raw, s.Pos) {
			end = s.Pos
			n++
			return true
		}
		if value := open(raw[start:]); value != nil {
			last = value
			n++
		}
		return false
	})
	if n == 0 {
		return nil
	}
	return closed(raw[:end], n, last, ']')
}

// whole reports whether the value that ends before end is all of it: a number at the very end may be longer.
func whole(raw []byte, end int) bool {
	if end < len(raw) {
		return true
	}
	switch raw[end-1] {
	case '"', '}', ']', 'e', 'l': // of a string, an object, an array, true, false, null
		return true
	}
	return false
}

// closed joins the complete part of a container with its last of n items, when that had to be made, and the
// closing byte.
func closed(complete []byte, n int, last []byte, closer byte) []byte {
	out := append(make([]byte, 0, len(complete)+len(last)+2), complete...)
	if last != nil {
		if n > 1 {
			out = append(out, ',')
		}
		out = append(out, last...)
	}
	return append(out, closer)
}

// readPart is the beginning of a cut body that was read whole, as an object.
func (r *Request) readPart() []byte {
	if len(r.members) == 0 {
		return []byte("{}")
	}
	return append(append(make([]byte, 0, len(r.Body)+1), r.Body[:r.members[len(r.members)-1].valueEnd]...), '}')
}
