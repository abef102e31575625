package reload

func (r Result) Waiting() []Change { return r.waiting() }
