package quota

import (
	"time"

	"github.com/kvpilot/kvpilot/server/peers/grants"
)

// bucket fills up at a rate, to a size. Its level may be below zero: what was taken beyond it must be filled up first. The zero value
// limits nothing. The caller passes the time and locks.
type bucket struct {
	rate, size float64
	level      float64 // at the time at
	at         time.Time
}

// newBucket returns a full bucket.
func newBucket(rate, size float64, now time.Time) bucket {
	return bucket{rate: rate, size: size, level: size, at: now}
}

// limits reports whether the bucket limits anything.
func (b *bucket) limits() bool { return b.rate > 0 }

// fill brings the level up to date.
func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.level = min(b.size, b.level+d.Seconds()*b.rate)
		b.at = now
	}
}

// wait is the time until need may be taken, zero for now. A need beyond the size must wait for a full bucket. The level is up to date.
func (b *bucket) wait(need float64) time.Duration {
	if lacks := min(need, b.size) - b.level; b.limits() && lacks > epsilon {
		return seconds(lacks / b.rate)
	}
	return 0
}

// epsilon is what sums of amounts may lose in rounding.
const epsilon = 1e-9

// refill is the time in which an empty bucket fills up.
func (b *bucket) refill() time.Duration {
	if !b.limits() {
		return 0
	}
	return seconds(b.size / b.rate)
}

// put adds n, which may be below zero. The bucket holds no more than its size and owes no more than it fills up in the longest wait.
func (b *bucket) put(n float64) {
	b.level = min(b.size, max(b.level+n, -b.debt()))
}

// debt bounds what may be owed.
func (b *bucket) debt() float64 { return b.rate * longest.Seconds() }

// resize changes rate and size. What was taken stays taken, but no new debt arises.
func (b *bucket) resize(rate, size float64, now time.Time) {
	b.fill(now)
	switch {
	case rate <= 0:
		*b = bucket{}
	case b.rate <= 0:
		*b = newBucket(rate, size, now)
	default:
		b.level = max(b.level+size-b.size, min(b.level, 0))
		b.rate, b.size = rate, size
	}
}

// share changes the part of a fleet's bucket that this one is. A smaller part has less in it; what a larger one has more,
// another router hands over.
func (b *bucket) share(from, to float64, now time.Time) {
	if b.rate <= 0 || from <= 0 {
		return
	}
	b.fill(now)
	part := to / from
	b.rate *= part
	b.size *= part
	if part < 1 {
		b.level *= part
	}
	b.level = min(b.level, b.size)
}

// buckets are the two of an account.
type buckets struct{ requests, tokens bucket }

// fill brings both levels up to date.
func (b *buckets) fill(now time.Time) {
	b.requests.fill(now)
	b.tokens.fill(now)
}

// full reports whether both are full. The levels are up to date.
func (b *buckets) full() bool {
	return b.requests.level >= b.requests.size && b.tokens.level >= b.tokens.size
}

// levels are both levels as amounts.
func (b *buckets) levels() grants.Amounts {
	return grants.Amounts{Requests: b.requests.level, Tokens: b.tokens.level}
}

// setLevels replaces the levels.
func (b *buckets) setLevels(a grants.Amounts, now time.Time) {
	b.fill(now)
	if b.requests.limits() {
		b.requests.level = 0
		b.requests.put(a.Requests)
	}
	if b.tokens.limits() {
		b.tokens.level = 0
		b.tokens.put(a.Tokens)
	}
}

// add adds to the levels; amounts below zero are debts.
func (b *buckets) add(a grants.Amounts, now time.Time) {
	b.fill(now)
	if b.requests.limits() {
		b.requests.put(a.Requests)
	}
	if b.tokens.limits() {
		b.tokens.put(a.Tokens)
	}
}

// limited is the part of amounts that the buckets limit.
func (b *buckets) limited(a grants.Amounts) grants.Amounts {
	if !b.requests.limits() {
		a.Requests = 0
	}
	if !b.tokens.limits() {
		a.Tokens = 0
	}
	return a
}

// share changes the part of a fleet's buckets that these are.
func (b *buckets) share(from, to float64, now time.Time) {
	b.requests.share(from, to, now)
	b.tokens.share(from, to, now)
}

// assume makes an assumption of the buckets as they are.
func (b *buckets) assume(now time.Time) assumption {
	return assumption{*b, now.Add(max(b.requests.refill(), b.tokens.refill()))}
}
