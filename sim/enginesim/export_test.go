package enginesim

func (e *Engine) Lives() uint64 { return e.lives.Load() }
