package resume

var ErrFailed = errFailed

func (f *Follower) Lost() Lost { return f.reason() }
