package resume

func (f *Follower) Lost() Lost { return f.reason() }

func (s *Point) Tail() []uint32 { return s.last() }

func (s *Point) Whole(text string) bool { return s.ends(text) }
