package resume

var (
	ErrStrange = errStrange
	ErrFailed  = errFailed
)

func (f *Follower) Lost() Lost { return f.reason() }
