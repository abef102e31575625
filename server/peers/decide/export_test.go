package decide

import "time"

// Held counts what a router keeps for requests.
type Held struct{ Asks, Here, Live, Copies, ClientAsks, Booked, Names, ClientCopies int }

// Sizes counts what both halves of a router keep.
func Sizes(f *Frontend, d *Decider) (h Held) {
	f.mu.Lock()
	h.Asks, h.Here, h.Live, h.Copies = len(f.asks), len(f.here), len(f.live), len(f.copies)
	f.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.clients {
		h.ClientAsks += len(c.asks)
		h.Booked += len(c.booked)
		h.Names += len(c.numbers)
		h.ClientCopies += len(c.copies)
	}
	return h
}

// TickEvery is how often Tick is to be called.
func (f *Frontend) TickEvery() time.Duration { return f.tickEvery() }

// TickEvery is how often Tick is to be called.
func (d *Decider) TickEvery() time.Duration { return d.tickEvery() }

// Leave withdraws the request, as the end of Choose's context does.
func (w *Waiting) Leave() bool { return w.leave() }
