package history

import (
	"math"
	"time"
)

const (
	// octave is how many buckets lie between a time and its double: a time is known to within five percent.
	octave = 8
	// buckets reach from a millisecond to a minute.
	buckets = 16*octave + 1
)

// quantiles counts times in buckets that grow by the same factor. The zero value is empty.
type quantiles struct {
	counts [buckets]uint32
	seen   uint32
}

func (q *quantiles) add(d time.Duration) {
	q.counts[bucket(d)]++
	q.seen++
}

func (q *quantiles) join(o *quantiles) {
	q.seen += o.seen
	for i, n := range o.counts {
		q.counts[i] += n
	}
}

// both are the median and the 99th percentile in milliseconds, each as the middle of the bucket that holds it; zeros when
// nothing was seen.
func (q *quantiles) both() (p50, p99 float64) {
	if q.seen == 0 {
		return 0, 0
	}
	half, most := (q.seen+1)/2, q.seen-q.seen/100
	counted, median := uint32(0), -1
	for i, n := range q.counts {
		counted += n
		if median < 0 && counted >= half {
			median = i
		}
		if counted >= most {
			return middle(median), middle(i)
		}
	}
	return 0, 0 // all values lie in a bucket
}

// bucket i holds times up to 1 ms times 2^(i/octave).
func bucket(d time.Duration) int {
	ms := max(1, float64(d)/float64(time.Millisecond))
	return min(buckets-1, int(math.Ceil(octave*math.Log2(ms))))
}

// middle is the middle of a bucket, in milliseconds.
func middle(bucket int) float64 { return math.Exp2((float64(bucket) - .5) / octave) }
