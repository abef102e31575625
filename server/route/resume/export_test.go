package resume

func (f *Follower) Lost() Lost { return f.reason() }
