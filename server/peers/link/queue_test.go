package link

import (
	"slices"
	"testing"
)

func TestAQueueKeepsOrderWithinItsBounds(t *testing.T) {
	q := newQueue(func(n int) int { return n })
	small := make([]int, 3*maxItems)
	for i := range small {
		small[i] = i % 7
		if !q.push(small[i]) {
			t.Fatal("a small item is too much")
		}
	}
	large := []int{maxBatch, 5, maxBatch / 2, maxBatch/2 + 1, 2 * maxBatch}
	for _, n := range large {
		q.push(n)
	}
	var got, batch []int
	for range 100 {
		batch, open := q.take(batch)
		if !open {
			t.Fatal("the queue is closed")
		}
		if len(batch) == 0 {
			break
		}
		bytes := 0
		for _, n := range batch {
			bytes += n
		}
		if len(batch) > maxItems || bytes > maxBatch && len(batch) > 1 {
			t.Errorf("a batch of %d items and %d bytes", len(batch), bytes)
		}
		got = append(got, batch...)
	}
	if !slices.Equal(got, slices.Concat(small, large)) {
		t.Errorf("%d items of %d came, or in another order", len(got), len(small)+len(large))
	}
	if q.bytes != 0 {
		t.Errorf("%d bytes are counted in an empty queue", q.bytes)
	}
}

func TestAQueueOverItsBoundIsClosed(t *testing.T) {
	q := newQueue(func(n int) int { return n })
	for range maxWaiting / maxBatch {
		if !q.push(maxBatch) {
			t.Fatal("the bound is too low")
		}
	}
	if q.push(1) {
		t.Error("the bound does not hold")
	}
	if _, open := q.take(nil); open || !q.isOver() || !q.push(1) || len(q.items) != 0 {
		t.Error("a closed queue must be empty, and drop further items without another complaint")
	}
}
