package decision

import (
	"fmt"
	"time"
)

// MemoryWait is the wait of a program's call while no rank has memory for the program's context. Tokens and programs are counted at its beginning.
type MemoryWait struct {
	// Program is the program's number at the router that decides.
	Program uint64
	// Tokens is the call's need: its prompt with the expected answer. Free is the memory of the rank with most free memory; 0 where
	// the memory of no rank is known.
	Tokens, Free int
	// Before are the programs that waited before it.
	Before int
	// Expected is the time until it is admitted; 0 when that was not known.
	Expected time.Duration
	// Waited is the time that it waited.
	Waited time.Duration
}

// String names the wait in a message.
func (w MemoryWait) String() string {
	text := fmt.Sprintf("its %d tokens do not fit", w.Tokens)
	switch {
	case w.Free >= w.Tokens:
		text = fmt.Sprintf("its %d tokens fit and others go first", w.Tokens)
	case w.Free > 0:
		text += fmt.Sprintf(" into the %d that are free", w.Free)
	}
	if w.Before == 1 {
		text += ", 1 program before it"
	} else {
		text += fmt.Sprintf(", %d programs before it", w.Before)
	}
	if w.Expected > 0 {
		text += ", about " + w.Expected.Round(time.Second).String()
	}
	return text
}
