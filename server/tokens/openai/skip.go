package openai

// skip reads one value of any kind, however deep, without recursion.
func (s *scanner) skip() bool {
	var objects [maxDepth / 64]uint64 // bit n: is the nth open container an object?
	open := 0
	for {
		c := s.space()
		switch c {
		case '{', '[':
			if s.depth+open >= maxDepth {
				return s.fail(s.pos, "nested too deep")
			}
			s.pos++
			bit := uint64(1) << (open % 64)
			if c == '{' {
				objects[open/64] |= bit
			} else {
				objects[open/64] &^= bit
			}
			open++
			if closer := s.space(); closer == c+2 { // '}' is '{'+2 and ']' is '['+2
				break
			}
			if c == '{' && !s.key() {
				return false
			}
			continue
		default:
			if !s.scalar(c) {
				return false
			}
		}
		more, ok := s.afterValue(&objects, &open)
		if !ok {
			return false
		}
		if !more {
			return true
		}
	}
}

// afterValue closes containers until another value must follow (more), or none is open.
func (s *scanner) afterValue(objects *[maxDepth / 64]uint64, open *int) (more, ok bool) {
	for *open > 0 {
		top := *open - 1
		isObject := objects[top/64]>>(top%64)&1 == 1
		closer := byte(']')
		if isObject {
			closer = '}'
		}
		switch c := s.space(); {
		case c == closer:
			s.pos++
			*open = top
		case c == ',':
			s.pos++
			if isObject {
				s.space()
				return true, s.key()
			}
			if s.space() == ']' {
				return false, s.fail(s.pos, "expected a value")
			}
			return true, true
		case s.atEnd():
			return false, s.end("',' or '" + string(closer) + "'")
		default:
			return false, s.fail(s.pos, "expected ',' or '"+string(closer)+"'")
		}
	}
	return false, true
}

// key reads a member's name and its colon.
func (s *scanner) key() bool {
	if s.atEnd() {
		return s.end("a member name")
	}
	if s.data[s.pos] != '"' {
		return s.fail(s.pos, "expected a member name in double quotes")
	}
	if _, ok := s.str(); !ok {
		return false
	}
	return s.expect(':', "':'")
}

// members walks over an object: visit is called with each member's name and must read its
// value. The name is valid during the call.
func (s *scanner) members(visit func(name []byte, keyStart int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.space() == '}' {
		return s.leave()
	}
	for {
		if s.space() != '"' {
			if s.atEnd() {
				return s.end("a member name")
			}
			return s.fail(s.pos, "expected a member name in double quotes")
		}
		start := s.pos
		name, ok := s.str()
		if !ok || !s.expect(':', "':'") {
			return false
		}
		s.space()
		if !visit(name.bytes(), start) {
			return false
		}
		switch s.space() {
		case ',':
			s.pos++
		case '}':
			return s.leave()
		default:
			return s.wantMore("'}'")
		}
	}
}

// elements walks over an array: visit must read the element that starts at pos.
func (s *scanner) elements(visit func(index int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.space() == ']' {
		return s.leave()
	}
	for index := 0; ; index++ {
		s.space()
		if !visit(index) {
			return false
		}
		switch s.space() {
		case ',':
			s.pos++
		case ']':
			return s.leave()
		default:
			return s.wantMore("']'")
		}
	}
}

func (s *scanner) wantMore(closer string) bool {
	if s.atEnd() {
		return s.end("',' or " + closer)
	}
	return s.fail(s.pos, "expected ',' or "+closer)
}

func (s *scanner) enter() bool {
	if s.depth >= maxDepth {
		return s.fail(s.pos, "nested too deep")
	}
	s.depth++
	s.pos++
	return true
}

func (s *scanner) leave() bool {
	s.depth--
	s.pos++
	return true
}
