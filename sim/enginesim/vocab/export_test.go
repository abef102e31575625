package vocab

var ErrBothPrompts = errBothPrompts
