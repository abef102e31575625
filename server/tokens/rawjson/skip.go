package rawjson

// Skip reads one value of any kind, however deep, without recursion.
func (s *Scanner) Skip() bool {
	var objects [maxDepth / 64]uint64 // bit n: is the nth open container an object?
	open := 0
	for {
		c := s.Space()
		switch {
		case c == '[' && s.depth+open < maxDepth && s.SkipIDs():
		case c == '{' || c == '[':
			if s.depth+open >= maxDepth {
				return s.Fail(s.Pos, "nested too deep")
			}
			s.Pos++
			bit := uint64(1) << (open % 64)
			if c == '{' {
				objects[open/64] |= bit
			} else {
				objects[open/64] &^= bit
			}
			open++
			if closer := s.Space(); closer == c+2 { // '}' is '{'+2 and ']' is '['+2
				break
			}
			if c == '{' && !s.key() {
				return false
			}
			continue
		case !s.scalar(c):
			return false
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

// SkipIDs skips a list of integers in its compact form, as lists of token ids are written. It returns false, with
// nothing read, for any other value.
func (s *Scanner) SkipIDs() bool {
	d, i := s.Data, s.Pos
	if i >= len(d) || d[i] != '[' {
		return false
	}
	for {
		i = compactIDs(d, i+1)
		start := i
		for i < len(d) && d[i]-'0' <= 9 {
			i++
		}
		switch {
		case i == start || i == len(d) || d[start] == '0' && i > start+1:
			return false
		case d[i] == ']':
			s.Pos = i + 1
			return true
		case d[i] != ',':
			return false
		}
	}
}

// afterValue closes containers until another value must follow (more), or none is open.
func (s *Scanner) afterValue(objects *[maxDepth / 64]uint64, open *int) (more, ok bool) {
	for *open > 0 {
		top := *open - 1
		isObject := objects[top/64]>>(top%64)&1 == 1
		closer := byte(']')
		if isObject {
			closer = '}'
		}
		switch c := s.Space(); {
		case c == closer:
			s.Pos++
			*open = top
		case c == ',':
			s.Pos++
			if isObject {
				s.Space()
				return true, s.key()
			}
			if s.Space() == ']' {
				return false, s.Fail(s.Pos, "expected a value")
			}
			return true, true
		case s.AtEnd():
			return false, s.end("',' or '" + string(closer) + "'")
		default:
			return false, s.Fail(s.Pos, "expected ',' or '"+string(closer)+"'")
		}
	}
	return false, true
}

// key reads a member's name and its colon.
func (s *Scanner) key() bool {
	if s.AtEnd() {
		return s.end("a member name")
	}
	if s.Data[s.Pos] != '"' {
		return s.Fail(s.Pos, "expected a member name in double quotes")
	}
	if _, ok := s.Text(); !ok {
		return false
	}
	return s.expect(':', "':'")
}

// Members walks over an object: visit is called with each member's name and must read its
// value. The name is valid during the call.
func (s *Scanner) Members(visit func(name []byte, keyStart int) bool) bool {
	return s.members(func(name Text, keyStart int) bool { return visit(name.Bytes(), keyStart) })
}

func (s *Scanner) members(visit func(name Text, keyStart int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.Space() == '}' {
		return s.leave()
	}
	for {
		if s.Space() != '"' {
			if s.AtEnd() {
				return s.end("a member name")
			}
			return s.Fail(s.Pos, "expected a member name in double quotes")
		}
		start := s.Pos
		name, ok := s.Text()
		if !ok || !s.expect(':', "':'") {
			return false
		}
		s.Space()
		if !visit(name, start) {
			return false
		}
		switch s.Space() {
		case ',':
			s.Pos++
		case '}':
			return s.leave()
		default:
			return s.wantMore("'}'")
		}
	}
}

// Elements walks over an array: visit must read the element that starts at Pos.
func (s *Scanner) Elements(visit func(index int) bool) bool {
	if !s.enter() {
		return false
	}
	if s.Space() == ']' {
		return s.leave()
	}
	for index := 0; ; index++ {
		s.Space()
		if !visit(index) {
			return false
		}
		switch s.Space() {
		case ',':
			s.Pos++
		case ']':
			return s.leave()
		default:
			return s.wantMore("']'")
		}
	}
}

func (s *Scanner) wantMore(closer string) bool {
	if s.AtEnd() {
		return s.end("',' or " + closer)
	}
	return s.Fail(s.Pos, "expected ',' or "+closer)
}

func (s *Scanner) enter() bool {
	if s.depth >= maxDepth {
		return s.Fail(s.Pos, "nested too deep")
	}
	s.depth++
	s.Pos++
	return true
}

func (s *Scanner) leave() bool {
	s.depth--
	s.Pos++
	return true
}
