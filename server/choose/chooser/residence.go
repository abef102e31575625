package chooser

import (
	"time"
)

// residence is the mean time in seconds that a request decodes.
type residence struct{ number }

func newResidence() *residence {
	r := &residence{}
	r.set(10)
	return r
}

func (r *residence) add(d time.Duration) {
	mean := r.get()
	r.set(mean + (d.Seconds()-mean)/64)
}
