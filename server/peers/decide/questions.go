package decide

import "time"

// questions are this frontend's to deciders, while they have no answer. The frontend's mu guards them.
type questions struct {
	asks  map[uint64]*Waiting
	fresh []unanswered // questions without any reply yet, the oldest first
}

// unanswered is a question in the order of asking.
type unanswered struct {
	number uint64
	asked  time.Time
}

// late takes the questions off fresh that had a reply, and returns the questions that had none for the patience.
func (q *questions) late(now time.Time, patience time.Duration) (list []*Waiting) {
	done := 0
	for _, u := range q.fresh {
		w := q.asks[u.number]
		if w != nil && !w.held {
			if now.Sub(u.asked) < patience {
				break
			}
			list = append(list, w)
		}
		done++
	}
	q.fresh = append(q.fresh[:0], q.fresh[done:]...)
	return list
}

// heldTooLong returns the questions that a peer has held for longer than any queue does.
func (q *questions) heldTooLong(now time.Time, most time.Duration) (list []*Waiting) {
	for _, w := range q.asks {
		if w.held && now.Sub(w.asked) > most {
			list = append(list, w)
		}
	}
	return list
}
